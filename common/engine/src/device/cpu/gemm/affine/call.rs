//! One GEMM or GEMV with a packed matrix, cut into tasks.

use std::ops::Range;

use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{AffineMatrix, Weight};
use crate::device::cpu::pool::{Tasks, current_threads};

/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;
/// Most bytes of codes of a task: threads that are done wait for the last task of another.
const TASK_BYTES: usize = 512 << 10;

/// One GEMM or GEMV: `x · weightᵀ + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) weight: AffineMatrix<'a>,
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, inputs]`.
    pub(crate) x: &'a [f32],
    /// Whether there is enough work for several threads.
    pub(crate) parallel: bool,
}

impl<'a> Call<'a> {
    /// The product of `x`, `[rows, inputs]`, with a packed matrix.
    ///
    /// # Panics
    /// As [`Weight::affine`], and as [`AffineMatrix::check`].
    pub(crate) fn new(weight: Weight<'a>, bias: Option<&'a [f32]>, x: &'a [f32]) -> Call<'a> {
        let (_, _, parallel) = weight.check(x, bias);
        let weight = weight.affine();
        Call { weight, bias, x, parallel }
    }

    pub(crate) fn rows(&self) -> usize {
        self.x.len() / self.weight.inputs
    }

    /// Tasks of `block` outputs of `y` each until every output had its turn; they may run at the same
    /// time.
    pub(crate) fn by_outputs(
        &self,
        block: usize,
        y: Target<'a>,
        task: impl Fn(Range<usize>, Target<'a>) + Sync + 'a,
    ) -> Tasks<'a> {
        let outputs = self.weight.outputs();
        let run = move |index: usize| {
            let start = index * block;
            task(start..(start + block).min(outputs), y);
        };
        self.tasks(outputs.div_ceil(block), run)
    }

    /// So many tasks that read the weight together.
    pub(crate) fn tasks(&self, count: usize, run: impl Fn(usize) + Sync + 'a) -> Tasks<'a> {
        Tasks::new(count, self.weight.codes.len(), self.parallel, run)
    }

    /// As [`share`].
    pub(crate) fn share(&self, multiple: usize) -> usize {
        share(self.weight.outputs(), self.weight.row_bytes(), multiple)
    }
}

/// Outputs of a task when every thread gets some, a multiple of `multiple`; each has `row_bytes` bytes of codes.
pub(crate) fn share(outputs: usize, row_bytes: usize, multiple: usize) -> usize {
    let share = match current_threads() {
        1 => outputs, // Nobody waits, and nobody takes a part.
        threads => outputs.div_ceil(threads * TASKS_PER_THREAD).min(TASK_BYTES / row_bytes),
    };
    share.next_multiple_of(multiple).max(multiple)
}
