//! GEMM and GEMV in f32 with FP8 weights (E4M3) and their scales: a few rows read them in place, for many they are
//! dequantized, some outputs at a time, and multiplied as f32 matrices are. All of them add the same products in the
//! same order, those of `float` with the dequantized weights.

mod direct;
mod halves;
mod matrix;
#[cfg(test)]
mod tests;
mod widen;

use self::direct::{Direct, FEW_ROWS, STRIP};
pub(crate) use self::matrix::{Fp8Matrix, ScaleType};
use self::widen::Widen;
use crate::device::cpu::gemm::coded::{TASKS_PER_THREAD, multiplied};
use crate::device::cpu::gemm::float::decoded_scratch;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Weight, WeightKind};
use crate::device::cpu::isa::prefetch::Prefetch;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads};

/// The GEMM and GEMV in f32 with FP8 weights.
pub(crate) struct Fp8;

// SAFETY: `Direct` writes all rows of its outputs, and the tasks' ranges are all outputs; `multiplied` promises the
// same.
unsafe impl Gemm for Fp8 {
    fn form(&self, _: WeightKind) -> Form {
        Form::F32
    }

    fn prepare<'x>(&self, _: Tier, _: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        Prepared::plain(x)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (rows, outputs, parallel) = weight.check(x.values(), bias);
        let matrix = weight.fp8();
        if rows > FEW_ROWS {
            return multiplied(tier, weight, bias, x, y, move |outputs, _, to| {
                tier.run(Widen { weight: matrix, outputs, to });
            });
        }
        let x = x.values();
        let share = outputs.div_ceil(current_threads() * TASKS_PER_THREAD);
        let share = share.next_multiple_of(STRIP).max(STRIP);
        let prefetch = Prefetch::here();
        let run = move |task: usize| {
            let range = task * share..((task + 1) * share).min(outputs);
            // Ranges of different tasks do not overlap, as `Target` demands.
            tier.run(Direct { weight: matrix, bias, x, rows, range, target: y, prefetch });
        };
        Tasks::new(outputs.div_ceil(share), matrix.numbers.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, _: u64) -> Scratch {
        decoded_scratch(inputs)
    }
}
