//! GEMM and GEMV in f32: a few outputs at a time are dequantized and multiplied as f32 matrices are.

use std::ops::Range;

use cake_checkpoint::FloatType;

use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{Element, F32};
use crate::device::cpu::gemm::float::{
    Call, Product, decoded_scratch, outputs_at_once, with_decoded, with_held,
};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Matrix, Weight, WeightKind};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads};

/// Tasks per thread, so that a thread that is held up leaves its share to others.
pub(in crate::device::cpu::gemm) const TASKS_PER_THREAD: usize = 8;

/// The GEMM and GEMV in f32 with weights that are dequantized, some outputs at a time.
pub(crate) struct Decoded;

// SAFETY: the tasks of `multiplied` write all rows of all outputs.
unsafe impl Gemm for Decoded {
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
        let coded = weight.coded();
        multiplied(tier, weight, bias, x, y, move |outputs, numbers, to| {
            let numbers = kept(numbers, outputs.len() * coded.inputs, 0.0);
            coded.decode(outputs, numbers);
            F32::store(numbers, to);
        })
    }

    fn scratch(&self, inputs: u64, _: u64) -> Scratch {
        decoded_scratch(inputs)
    }
}

/// The product with a matrix that `decode` dequantizes some outputs of, as little-endian f32, `[outputs, inputs]`,
/// written to what it is given last; the numbers before are its own to use. The tasks write all rows of all outputs.
pub(in crate::device::cpu::gemm) fn multiplied<'a>(
    tier: Tier,
    weight: Weight<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Prepared<'a>,
    y: Target<'a>,
    decode: impl Fn(Range<usize>, &mut Vec<f32>, &mut [u8]) + Sync + 'a,
) -> Tasks<'a> {
    let (rows, outputs, parallel) = weight.check(x.values(), bias);
    let (inputs, x) = (weight.inputs(), x.values());
    let share = outputs.div_ceil(current_threads() * TASKS_PER_THREAD);
    let at_once = outputs_at_once(rows);
    let share = share.next_multiple_of(at_once).max(at_once);
    let run = move |task: usize| {
        let all = task * share..((task + 1) * share).min(outputs);
        with_decoded(|numbers, bytes| {
            for start in all.clone().step_by(at_once) {
                let range = start..(start + at_once).min(all.end);
                let bytes = kept(bytes, range.len() * inputs * F32::BYTES, 0);
                decode(range.clone(), numbers, bytes);
                let weight = Matrix { bytes, float: FloatType::F32, inputs };
                let (origin, target, prefetch) = (start, y, None);
                // Ranges of different tasks do not overlap, as `Target` demands.
                let call = Call { weight, origin, bias, x, rows, range, target, prefetch };
                with_held(|held| tier.run(Product { call, held }));
            }
        });
    };
    Tasks::new(outputs.div_ceil(share), weight.bytes().len(), parallel, run)
}
