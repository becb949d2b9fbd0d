//! What a GEMM or GEMV kernel offers, and what it is given.

use std::any::Any;

use super::target::Target;
use super::weight::{CodeForm, Weight, WeightKind};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Tasks;

/// A kernel that multiplies rows of activations with stored matrices: a GEMM, or beside one row a GEMV. Called once for
/// a product, never inside of its loops.
///
/// # Safety
/// Whoever implements it promises that, once all tasks of [`Gemm::tasks`] have run, in any order and on any threads,
/// every element of `y` has been written: whoever asked for the product then reads memory that was not set before.
///
/// # Panics
/// Every method, if the table would not have given the kernel such weights on such a processor.
pub(crate) unsafe trait Gemm: Sync {
    /// How activations are prepared for weights stored so.
    fn form(&self, kind: WeightKind) -> Form;

    /// Prepares activations `x`, `[rows, inputs]`, for `weight` and for all others with as many inputs whose products
    /// take the same [`Form`].
    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x>;

    /// `x · weightᵀ + bias`, where `weight` is `[outputs, inputs]` and `bias` has an element per output. The result
    /// `y`, `[rows, outputs]`, is there when the tasks are done.
    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a>;

    /// Upper bounds of the bytes that a product with `rows` rows of `inputs` activations holds beside its arguments
    /// and its result.
    fn scratch(&self, inputs: u64, rows: u64) -> Scratch;
}

/// How activations are prepared for a product.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "forms of kernels of x86-64"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// As they are: f32.
    F32,
    /// f32, of every 32 inputs those at even places first.
    EvensFirst,
    /// Quantized: codes of 16 bits or of 8, with a scale for each group of inputs.
    Words(CodeForm),
    /// The same codes in the order in which vectors of weights are unpacked; with AVX512-VNNI, those of few rows as two
    /// planes of bytes, and those of many in register tiles, rows in turn.
    Lanes(CodeForm),
    /// The same codes as two planes of bytes, and where several rows are multiplied together, as tiles, too.
    ByteTiles(CodeForm),
    /// Pairs of bf16: one plane of them, or two whose sum an activation is.
    Bf16Pairs { planes: usize },
    /// Tiles of bf16, in one plane or two.
    Bf16Tiles { planes: usize },
    /// Tiles of bf16, with both planes of at most eight rows in one.
    NarrowBf16Tiles,
}

/// Rows of activations, prepared once for all products that take this form.
pub(crate) struct Prepared<'x> {
    x: &'x [f32],
    form: Form,
    made: Box<dyn Any + Send + Sync>,
}

impl<'x> Prepared<'x> {
    /// Activations `x`, `[rows, inputs]`, and what was made of them for products that take this form.
    pub(crate) fn new(x: &'x [f32], form: Form, made: impl Any + Send + Sync) -> Prepared<'x> {
        Prepared { x, form, made: Box::new(made) }
    }

    /// Activations `x`, `[rows, inputs]`, as they are.
    pub(crate) fn plain(x: &'x [f32]) -> Prepared<'x> {
        Prepared::new(x, Form::F32, ())
    }

    /// The activations themselves.
    pub(crate) fn values(&self) -> &'x [f32] {
        self.x
    }

    /// What was made of them.
    ///
    /// # Panics
    /// If they were prepared in another form.
    pub(crate) fn made<T: Any>(&self, form: Form) -> &T {
        assert_eq!(self.form, form, "activations in the form that the product takes");
        self.made.downcast_ref().expect("kernels that take one form make one type of it")
    }
}

/// Memory that a product holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scratch {
    /// Bytes of the prepared activations.
    pub(crate) activations: u64,
    /// Bytes that each thread holds, or keeps from its first product on.
    pub(crate) thread: u64,
    /// Whose buffers a thread keeps: kernels that name the same ones share them.
    pub(crate) buffers: &'static str,
}
