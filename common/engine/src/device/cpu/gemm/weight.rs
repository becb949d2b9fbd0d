//! Stored weight matrices, as GEMM kernels take them.

use std::ops::Range;

use cake_checkpoint::{FloatType, Fp4, GgmlType, Unpacked};

use super::fp8::Fp8Matrix;
use crate::device::cpu::pool::PARALLEL_WORK;

/// A stored matrix `[outputs, inputs]`, row-major, at any address.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// The elements; `outputs * inputs` of them, little-endian.
    pub(crate) bytes: &'a [u8],
    /// Their type.
    pub(crate) float: FloatType,
    /// Elements per row, at least 1.
    pub(crate) inputs: usize,
}

impl Matrix<'_> {
    /// Bytes of one row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.inputs * self.float.bytes()
    }

    /// Number of rows of the matrix, which is the number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// Rows of `x` and outputs of the product, and whether it is worth several threads.
    ///
    /// # Panics
    /// If `x` has a part of a row, or `bias` not one element per output.
    pub(crate) fn check(&self, x: &[f32], bias: Option<&[f32]>) -> (usize, usize, bool) {
        let (rows, outputs) = (x.len() / self.inputs, self.outputs());
        assert_eq!(x.len(), rows * self.inputs, "whole rows");
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias each");
        (rows, outputs, rows * outputs * self.inputs >= PARALLEL_WORK)
    }
}

/// Codes that the widest group has; groups of every size divide it.
pub(crate) const MAX_GROUP: usize = 128;
/// Codes that the narrowest stored group has.
#[cfg(target_arch = "x86_64")]
pub(crate) const MIN_GROUP: usize = 32;
/// Codes that the narrowest group has of what is unpacked.
pub(crate) const SHORT_GROUP: usize = 16;

/// Width of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bits {
    /// Two codes in a byte, the earlier one in the low half.
    Four,
    /// One code in a byte, below 64.
    Six,
    /// One code in a byte.
    Eight,
}

impl Bits {
    /// That of affine codes so wide, if kernels take them as they are stored; others are read in place, or unpacked to
    /// bytes.
    pub(crate) fn of_affine(bits: usize) -> Option<Bits> {
        match bits {
            4 => Some(Bits::Four),
            8 => Some(Bits::Eight),
            _ => None,
        }
    }

    /// Codes in one byte.
    pub(crate) fn per_byte(self) -> usize {
        match self {
            Bits::Four => 2,
            Bits::Six | Bits::Eight => 1,
        }
    }

    /// Whether codes are below 64, so that the sum of four products with signed bytes fits 16 bits.
    pub(crate) fn is_narrow(self) -> bool {
        self != Bits::Eight
    }
}

/// How wide the codes of quantized activations are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acts {
    /// Of 16 bits.
    Words,
    /// Of 8 bits, beside [narrow](Bits::is_narrow) ones.
    Bytes,
}

/// What an integer GEMM or GEMV depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CodeForm {
    /// The width of a weight's code.
    pub(crate) bits: Bits,
    /// Inputs that share a scale and a bias.
    pub(crate) group: usize,
    /// What they are multiplied with.
    pub(crate) acts: Acts,
}

/// A grouped-affine matrix `[outputs, inputs]`, row-major, at any address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineMatrix<'a> {
    /// The codes, `outputs · inputs` of them.
    pub(crate) codes: &'a [u8],
    /// `[outputs, inputs / group]` of `params`.
    pub(crate) scales: &'a [u8],
    /// As `scales`.
    pub(crate) biases: &'a [u8],
    /// The type of scales and biases.
    pub(crate) params: FloatType,
    /// The width of a code.
    pub(crate) bits: Bits,
    /// What these are multiplied with.
    pub(crate) acts: Acts,
    /// Inputs that share a scale and a bias: 32, 64 or 128; 16, of a byte each, only where they were unpacked.
    pub(crate) group: usize,
    /// Inputs per output: whole groups, at least one.
    pub(crate) inputs: usize,
}

impl<'a> AffineMatrix<'a> {
    /// Bytes of the codes of one output.
    pub(crate) fn row_bytes(&self) -> usize {
        self.inputs / self.bits.per_byte()
    }

    /// Groups of one output.
    pub(crate) fn groups(&self) -> usize {
        self.inputs / self.group
    }

    /// Bytes of the scales of one output, and of its biases.
    pub(crate) fn param_bytes(&self) -> usize {
        self.groups() * self.params.bytes()
    }

    /// Number of outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.codes.len() / self.row_bytes()
    }

    /// Some outputs of the matrix.
    pub(crate) fn rows(&self, rows: Range<usize>) -> AffineMatrix<'a> {
        let codes = rows.start * self.row_bytes()..rows.end * self.row_bytes();
        let params = rows.start * self.param_bytes()..rows.end * self.param_bytes();
        AffineMatrix {
            codes: &self.codes[codes],
            scales: &self.scales[params.clone()],
            biases: &self.biases[params],
            ..*self
        }
    }

    /// Rows of `x` and outputs of the product, and whether it is worth several threads.
    ///
    /// # Panics
    /// If the parts of the matrix do not go together, `x` has a part of a row, or `bias` not one
    /// element per output.
    pub(crate) fn check(&self, x: &[f32], bias: Option<&[f32]>) -> (usize, usize, bool) {
        assert!(self.inputs > 0 && self.inputs.is_multiple_of(self.group), "whole groups");
        assert!(
            matches!(self.group, SHORT_GROUP | 32 | 64 | MAX_GROUP),
            "a group that kernels know"
        );
        assert!(self.acts == Acts::Words || self.bits.is_narrow(), "bytes beside narrow codes");
        assert!(self.group != SHORT_GROUP || self.bits != Bits::Four, "short groups have bytes");
        let (rows, outputs) = (x.len() / self.inputs, self.outputs());
        assert_eq!(self.codes.len(), outputs * self.row_bytes(), "whole outputs");
        assert_eq!(self.scales.len(), outputs * self.param_bytes(), "a scale a group");
        assert_eq!(self.biases.len(), self.scales.len(), "a bias a scale");
        assert_eq!(x.len(), rows * self.inputs, "whole rows");
        assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias each");
        (rows, outputs, x.len() * outputs >= PARALLEL_WORK)
    }
}

/// A matrix that its codec dequantizes, and perhaps unpacks to codes of a byte.
pub(crate) trait Decode: Sync {
    /// Dequantizes some rows into `out`, `[rows, inputs]`.
    fn decode(&self, rows: Range<usize>, out: &mut [f32]);

    /// Fills `out` with the same as codes of a byte, and a scale and a bias for each group.
    ///
    /// # Panics
    /// If the encoding has no such form.
    fn unpack(&self, rows: Range<usize>, out: Unpacked<'_>);
}

/// Rows of such a matrix: `[outputs, inputs]`.
#[derive(Clone, Copy)]
pub(crate) struct Coded<'a> {
    /// The whole matrix,
    pub(crate) matrix: &'a dyn Decode,
    /// and which of its rows is the first output.
    pub(crate) first: usize,
    /// Number of outputs.
    pub(crate) outputs: usize,
    /// Inputs per output.
    pub(crate) inputs: usize,
    /// The bytes that all outputs are read from, but for scales that lie apart.
    pub(crate) bytes: &'a [u8],
    /// Weights that share a scale and a bias where they are unpacked; `None` where they can only be dequantized.
    pub(crate) group: Option<usize>,
    /// Whether these codes are below 64.
    pub(crate) is_narrow: bool,
    /// What they are multiplied with.
    pub(crate) acts: Acts,
    /// What a kernel has to know that reads them as they lie, if there may be one.
    pub(crate) in_place: Option<InPlace>,
    /// The scales that such a kernel reads beside `bytes`,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) scales: &'a [u8],
    /// the biases,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) biases: &'a [u8],
    /// the type of both where they are numbers,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) float: FloatType,
    /// and what all are divided by or multiplied with.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) global: Option<Global>,
}

/// One number of a matrix that changes all its scales.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for it"))]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Global {
    /// It divides them.
    Divides(f32),
    /// It multiplies them.
    Multiplies(f32),
}

/// Encodings, beside numbers and affine codes of a byte or half of one, that kernels may read in place, as they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InPlace {
    /// GGUF's blocks, which have their scales among them.
    Blocks(GgmlType),
    /// FP4 (E2M1), with a byte apart from the codes for each group's scale.
    Fp4(Fp4),
    /// Affine codes of 2, 3, 5 or 6 bits, one behind the other.
    Stream {
        /// Bits of a code.
        bits: usize,
    },
}

impl Coded<'_> {
    /// Dequantizes some outputs into `out`, `[outputs, inputs]`.
    pub(crate) fn decode(&self, outputs: Range<usize>, out: &mut [f32]) {
        self.matrix.decode(self.rows(outputs), out);
    }

    /// Fills `out` with the same as codes of a byte, and a scale and a bias for each group.
    ///
    /// # Panics
    /// If they have no `group`.
    pub(crate) fn unpack(&self, outputs: Range<usize>, out: Unpacked<'_>) {
        self.matrix.unpack(self.rows(outputs), out);
    }

    fn rows(&self, outputs: Range<usize>) -> Range<usize> {
        self.first + outputs.start..self.first + outputs.end
    }

    /// As [`Matrix::check`].
    fn check(&self, x: &[f32], bias: Option<&[f32]>) -> (usize, usize, bool) {
        let rows = x.len() / self.inputs;
        assert_eq!(x.len(), rows * self.inputs, "whole rows");
        assert!(bias.is_none_or(|bias| bias.len() == self.outputs), "a bias each");
        (rows, self.outputs, x.len() * self.outputs >= PARALLEL_WORK)
    }
}

/// What of a matrix's encoding, and of what it is multiplied with, chooses a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WeightKind {
    /// As numbers.
    Float(FloatType),
    /// As codes, `group` of which share a scale and a bias.
    Affine(CodeForm),
    /// As FP8 (E4M3) with a scale for each block.
    Fp8,
    /// As something else, which may be unpacked to codes of a byte, `group` of which share a scale and a bias, and
    /// which are below 64 if `is_narrow`, and perhaps be read `in_place`.
    Coded { group: Option<usize>, is_narrow: bool, acts: Acts, in_place: Option<InPlace> },
}

impl WeightKind {
    /// The form of its codes.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn affine(self) -> CodeForm {
        match self {
            WeightKind::Affine(form) => form,
            WeightKind::Coded { group: Some(group), is_narrow, acts, .. } => {
                CodeForm { bits: if is_narrow { Bits::Six } else { Bits::Eight }, group, acts }
            }
            _ => unreachable!("the table gives numbers to other kernels"),
        }
    }
}

/// A stored matrix `[outputs, inputs]`.
#[derive(Clone, Copy)]
pub(crate) enum Weight<'a> {
    /// Numbers.
    Float(Matrix<'a>),
    /// Codes with scales and biases.
    Affine(AffineMatrix<'a>),
    /// FP8 with scales.
    Fp8(Fp8Matrix<'a>),
    /// Something else.
    Coded(Coded<'a>),
}

impl<'a> Weight<'a> {
    /// What chooses its kernel.
    pub(crate) fn kind(&self) -> WeightKind {
        match self {
            Weight::Float(matrix) => WeightKind::Float(matrix.float),
            Weight::Affine(AffineMatrix { bits, group, acts, .. }) => {
                WeightKind::Affine(CodeForm { bits: *bits, group: *group, acts: *acts })
            }
            Weight::Fp8(_) => WeightKind::Fp8,
            Weight::Coded(matrix) => {
                let Coded { group, is_narrow, acts, in_place, .. } = *matrix;
                WeightKind::Coded { group, is_narrow, acts, in_place }
            }
        }
    }

    /// Inputs per output.
    pub(crate) fn inputs(&self) -> usize {
        match self {
            Weight::Float(matrix) => matrix.inputs,
            Weight::Affine(matrix) => matrix.inputs,
            Weight::Fp8(matrix) => matrix.inputs,
            Weight::Coded(matrix) => matrix.inputs,
        }
    }

    /// The bytes that all outputs are read from, but for scales and biases.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Weight::Float(matrix) => matrix.bytes,
            Weight::Affine(matrix) => matrix.codes,
            Weight::Fp8(matrix) => matrix.numbers,
            Weight::Coded(matrix) => matrix.bytes,
        }
    }

    /// Number of outputs.
    #[cfg(test)]
    pub(crate) fn outputs(&self) -> usize {
        match self {
            Weight::Float(matrix) => matrix.outputs(),
            Weight::Affine(matrix) => matrix.outputs(),
            Weight::Fp8(matrix) => matrix.outputs(),
            Weight::Coded(matrix) => matrix.outputs,
        }
    }

    /// As [`Matrix::check`] and [`AffineMatrix::check`].
    pub(crate) fn check(&self, x: &[f32], bias: Option<&[f32]>) -> (usize, usize, bool) {
        match self {
            Weight::Float(matrix) => matrix.check(x, bias),
            Weight::Affine(matrix) => matrix.check(x, bias),
            Weight::Fp8(matrix) => matrix.check(x, bias),
            Weight::Coded(matrix) => matrix.check(x, bias),
        }
    }

    /// The matrix of a kernel for numbers.
    ///
    /// # Panics
    /// If it is packed.
    pub(crate) fn float(self) -> Matrix<'a> {
        match self {
            Weight::Float(matrix) => matrix,
            _ => unreachable!("the table gives packed matrices to other kernels"),
        }
    }

    /// The matrix of a kernel for packed ones; of what is unpacked to such, one without outputs, which says how
    /// activations are prepared.
    ///
    /// # Panics
    /// If it is not packed.
    pub(crate) fn affine(self) -> AffineMatrix<'a> {
        match self {
            Weight::Affine(matrix) => matrix,
            Weight::Coded(Coded { inputs, .. }) => {
                let (params, CodeForm { bits, group, acts }) =
                    (FloatType::F32, self.kind().affine());
                let (codes, scales, biases) = (&[], &[], &[]);
                AffineMatrix { codes, scales, biases, params, bits, acts, group, inputs }
            }
            _ => unreachable!("the table gives numbers to other kernels"),
        }
    }

    /// The matrix of the kernel for FP8.
    ///
    /// # Panics
    /// If it is stored otherwise.
    pub(crate) fn fp8(self) -> Fp8Matrix<'a> {
        match self {
            Weight::Fp8(matrix) => matrix,
            _ => unreachable!("the table gives everything else to other kernels"),
        }
    }

    /// The matrix of a kernel for what no other reads.
    ///
    /// # Panics
    /// If another one does.
    pub(crate) fn coded(self) -> Coded<'a> {
        match self {
            Weight::Coded(matrix) => matrix,
            _ => unreachable!("the table gives what kernels read to these"),
        }
    }
}
