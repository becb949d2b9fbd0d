//! Products with grouped-affine matrices: unsigned codes with a scale and a bias per group of
//! inputs.
//!
//! A weight is `scale · code + bias`. There are two kinds of arithmetic:
//!
//! - [`Numerics::Exact`]: activations stay f32; a weight is widened with one multiply-add and the
//!   product is that of [`matmul`](super::matmul()), in its order of summation.
//! - [`Numerics::Fast`]: each group of an activation row is rounded to 16 bits (`activations`) and
//!   multiplied with the codes in whole numbers, which no order of summation changes. An output is
//!   one chain over the groups in order, from a sum of zero:
//!   `y = mul_add(scale · s, dot, y); y = mul_add(bias, s · sum, y)`, then `+ layer bias`, where `s`
//!   is the scale of the activations of the group, `sum` the sum of their codes and `dot` the sum of
//!   the products, rounded to f32 once. Kernels that multiply bytes take the two bytes of an activation
//!   one after the other. All tiers with fused multiply-add give the same bits for any number of rows,
//!   tiles and threads.

mod activations;
pub(crate) mod exact;
mod plain;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(target_arch = "x86_64")]
use std::cell::OnceCell;
use std::ops::Range;

use crate::device::cpu::buffer::Unset;
use crate::device::cpu::gemm::inputs::Inputs;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{AffineMatrix, Bits};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads};
use crate::options::Numerics;
use activations::{Activations, Form};

/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;
/// Most bytes of codes of a task: threads that are done wait for the last task of another.
const TASK_BYTES: usize = 512 << 10;
/// `x · weightᵀ + bias`: `x` is `[rows, inputs]`, the result `y` is `[rows, outputs]`, both row-major; it
/// is there when the tasks are done.
///
/// `bias` has one element per output.
pub(crate) fn affine_matmul<'a>(
    tier: Tier,
    numerics: Numerics,
    weight: AffineMatrix<'a>,
    bias: Option<&'a [f32]>,
    inputs: &'a Inputs<'a>,
    y: &'a mut Unset,
) -> Tasks<'a> {
    let x = inputs.values();
    let (_, _, parallel) = weight.check(x, bias);
    let call = Call { weight, bias, x, parallel };
    match numerics {
        Numerics::Exact => exact::matmul(tier, call, y),
        Numerics::Fast => {
            #[cfg(target_arch = "x86_64")]
            if let Some(vnni) = tier.avx512().and_then(|avx512| avx512.vnni()) {
                let x = Quantized::of(inputs, tier, &call, Form::Planes);
                return match tier {
                    Tier::Amx(amx) if call.rows() > tiles::FEW_ROWS => {
                        let pack = || tiles::Packed::new(amx, &call, &x.activations);
                        tiles::matmul(amx, call, (&x.activations, x.tiles.get_or_init(pack)), y)
                    }
                    Tier::Amx(amx) if call.rows() > vnni::DIRECT_ROWS => {
                        let pack = || tiles::FewPacked::new(amx, &call, &x.activations);
                        tiles::matmul_few(amx, call, (&x.activations, x.few.get_or_init(pack)), y)
                    }
                    _ => vnni::matmul(vnni, call, &x.activations, y),
                };
            }
            let x = Quantized::of(inputs, tier, &call, Form::Words);
            plain::matmul(tier, call, &x.activations, y)
        }
    }
}

/// Upper bounds of the bytes that a product in the arithmetic of [`Numerics::Fast`] holds beside
/// its arguments and its result: for `rows` rows of activations of so many inputs, and for each
/// thread, which keeps what it once needed.
pub(crate) fn product_bytes(inputs: u64, rows: u64) -> (u64, u64) {
    let quantized = activations::row_bytes(inputs).saturating_mul(rows);
    #[cfg(target_arch = "x86_64")]
    {
        let (packed, thread) = tiles::product_bytes(inputs, rows);
        (quantized.saturating_add(packed), thread + vnni::PANEL_BYTES)
    }
    #[cfg(not(target_arch = "x86_64"))]
    (quantized, 0)
}

/// Activations as the kernels of one form take them, beside weights of one kind.
pub(super) struct Quantized {
    kind: (Bits, usize, Form),
    activations: Activations,
    #[cfg(target_arch = "x86_64")]
    few: OnceCell<tiles::FewPacked>,
    #[cfg(target_arch = "x86_64")]
    tiles: OnceCell<tiles::Packed>,
}

impl Quantized {
    /// The rows of `call`, which are those of `inputs` and quantized only if they were not before.
    fn of<'a>(inputs: &'a Inputs<'_>, tier: Tier, call: &Call<'_>, form: Form) -> &'a Quantized {
        let kind = (call.weight.bits, call.weight.group, form);
        let quantize = || Quantized {
            kind,
            activations: Activations::quantize(tier, call, form),
            #[cfg(target_arch = "x86_64")]
            few: OnceCell::new(),
            #[cfg(target_arch = "x86_64")]
            tiles: OnceCell::new(),
        };
        let found = inputs.quantized.get_or_init(quantize);
        assert!(found.kind == kind, "inputs of matrices that are stored in one way");
        found
    }
}

/// One product.
#[derive(Clone, Copy)]
struct Call<'a> {
    weight: AffineMatrix<'a>,
    bias: Option<&'a [f32]>,
    /// `[rows, inputs]`.
    x: &'a [f32],
    /// Whether there is enough work for several threads.
    parallel: bool,
}

impl<'a> Call<'a> {
    fn rows(&self) -> usize {
        self.x.len() / self.weight.inputs
    }

    /// Tasks of `block` outputs of `y` each until every output had its turn; they may run at the same
    /// time.
    fn by_outputs(
        &self,
        block: usize,
        y: &'a mut Unset,
        task: impl Fn(Range<usize>, Target<'a>) + Sync + 'a,
    ) -> Tasks<'a> {
        let outputs = self.weight.outputs();
        let target = Target::new(y, self.rows(), outputs);
        let run = move |index: usize| {
            let start = index * block;
            task(start..(start + block).min(outputs), target);
        };
        self.tasks(outputs.div_ceil(block), run)
    }

    /// So many tasks that read the weight together.
    fn tasks(&self, count: usize, run: impl Fn(usize) + Sync + 'a) -> Tasks<'a> {
        Tasks::new(count, self.weight.codes.len(), self.parallel, run)
    }

    /// Outputs of a task when every thread gets some, a multiple of `multiple`.
    fn share(&self, multiple: usize) -> usize {
        let tasks = current_threads() * TASKS_PER_THREAD;
        let share = self.weight.outputs().div_ceil(tasks).min(TASK_BYTES / self.weight.row_bytes());
        share.next_multiple_of(multiple).max(multiple)
    }
}
