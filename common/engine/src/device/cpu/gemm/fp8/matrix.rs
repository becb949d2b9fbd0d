//! FP8 matrices, as GEMM kernels take them.

use cake_checkpoint::{Dtype, FloatType, e8m0};

use crate::device::cpu::element::number;
use crate::device::cpu::pool::PARALLEL_WORK;

/// How scales are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScaleType {
    /// As numbers.
    Float(FloatType),
    /// As exponents of two.
    E8m0,
}

impl ScaleType {
    /// How scales of this type are stored.
    ///
    /// # Panics
    /// If there are no such scales.
    pub(crate) fn of(dtype: Dtype) -> ScaleType {
        match FloatType::of(dtype) {
            Some(float) => ScaleType::Float(float),
            None if dtype == Dtype::F8E8M0 => ScaleType::E8m0,
            None => {
                unreachable!("checked when the matrix was made: its scales have a type of theirs")
            }
        }
    }
}

impl ScaleType {
    /// Whether 256 times each of these scales is a number, too, where the scale is: whether the kernel takes them. No
    /// model has others.
    pub(crate) fn takes(self, scales: &[u8]) -> bool {
        let is_taken = |scale: f32| !scale.is_finite() || (256.0 * scale).is_finite();
        match self {
            ScaleType::Float(float) => (0..scales.len() / float.bytes())
                .all(|index| is_taken(number(float, scales, index))),
            ScaleType::E8m0 => scales.iter().all(|scale| is_taken(e8m0(*scale))),
        }
    }
}

/// Rows `[outputs, inputs]`, row-major, of an FP8 matrix (E4M3), blocks of which share a scale.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fp8Matrix<'a> {
    /// A byte for each number.
    pub(crate) numbers: &'a [u8],
    /// The scales of all of the matrix that these are rows of, at any address: `[blocks of rows, blocks of inputs]`.
    pub(crate) scales: &'a [u8],
    /// Their type.
    pub(crate) scale: ScaleType,
    /// Rows and inputs that share a scale; more than there are where all do. Several blocks of inputs are each as
    /// wide as a multiple of 32 that divides [`CHUNK`](super::halves::CHUNK), or as one of that.
    pub(crate) shared: [usize; 2],
    /// Which row of that matrix is the first output.
    pub(crate) first: usize,
    /// Inputs per output, at least 1.
    pub(crate) inputs: usize,
}

impl<'a> Fp8Matrix<'a> {
    /// Number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.numbers.len() / self.inputs
    }

    /// As [`Matrix::check`](crate::device::cpu::gemm::weight::Matrix::check).
    pub(crate) fn check(&self, x: &[f32], bias: Option<&[f32]>) -> (usize, usize, bool) {
        let (rows, outputs) = (x.len() / self.inputs, self.outputs());
        assert_eq!(x.len(), rows * self.inputs, "whole rows");
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias each");
        (rows, outputs, x.len() * outputs >= PARALLEL_WORK)
    }

    /// One output.
    #[inline(always)]
    pub(super) fn row(&self, output: usize) -> Row<'a> {
        let [rows, width] = self.shared;
        let first = (self.first + output) / rows * self.inputs.div_ceil(width);
        let numbers = &self.numbers[output * self.inputs..][..self.inputs];
        Row { numbers, scales: self.scales, scale: self.scale, first }
    }

    /// Inputs of a block that shares a scale, of which all inputs may be one.
    #[inline(always)]
    pub(super) fn width(&self) -> usize {
        self.shared[1].min(self.inputs)
    }

    /// Whether so many outputs from this one on, and from each on that is a multiple of as many further, share their
    /// scales.
    pub(super) fn is_shared(&self, output: usize, by: usize) -> bool {
        let rows = self.shared[0];
        rows == usize::MAX || rows.is_multiple_of(by) && (self.first + output).is_multiple_of(by)
    }
}

/// The numbers of one output, and their scales.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) numbers: &'a [u8],
    scales: &'a [u8],
    scale: ScaleType,
    /// Which of the scales is that of the first inputs.
    first: usize,
}

impl Row<'_> {
    /// 256 times the scale of a block of inputs.
    #[inline(always)]
    pub(super) fn factor(&self, block: usize) -> f32 {
        let index = self.first + block;
        let scale = match self.scale {
            ScaleType::Float(float) => number(float, self.scales, index),
            ScaleType::E8m0 => e8m0(self.scales[index]),
        };
        256.0 * scale
    }
}
