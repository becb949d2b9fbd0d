//! The operands of one task of an f32 GEMM or GEMV.

use std::ops::Range;

use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::Matrix;
use crate::device::cpu::isa::prefetch::Prefetch;

/// One task of a product: all rows, some outputs.
pub(crate) struct Call<'a> {
    /// The outputs from `origin` on.
    pub(crate) weight: Matrix<'a>,
    /// The output that the first row of `weight` belongs to.
    pub(crate) origin: usize,
    /// One element per output, counted from output 0.
    pub(crate) bias: Option<&'a [f32]>,
    /// Activations `[rows, inputs]`, in the order that the elements of the weight are loaded in.
    pub(crate) x: &'a [f32],
    /// Rows of activations.
    pub(crate) rows: usize,
    /// The outputs to compute, from `origin` on.
    pub(crate) range: Range<usize>,
    /// The result, `[rows, outputs]`.
    pub(crate) target: Target<'a>,
    /// What is prefetched of the weights; `None` if they are in the cache.
    pub(crate) prefetch: Option<Prefetch>,
}
