//! Products in f32: a few outputs at a time are decoded and multiplied as f32 matrices are.

use std::cell::RefCell;
use std::ops::Range;

use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{Element, F32, FloatType};
use crate::device::cpu::gemm::float::{Call, OUTPUTS, Product, with_held};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Coded, Encoding, Matrix, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads};

/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;

thread_local! {
    /// The outputs that a thread works on, as numbers and as the bytes that are multiplied.
    static OUTPUTS_HELD: RefCell<(Vec<f32>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// The product in f32 with what is decoded.
pub(crate) struct Decoded;

// SAFETY: `Product` writes all rows of its outputs, and the tasks' ranges are all outputs.
unsafe impl Gemm for Decoded {
    fn form(&self, _: Encoding) -> Form {
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
        let (weight, x) = (weight.coded(), x.values());
        let share = outputs.div_ceil(current_threads() * TASKS_PER_THREAD);
        let share = share.next_multiple_of(OUTPUTS).max(OUTPUTS);
        let run = move |task: usize| {
            let all = task * share..((task + 1) * share).min(outputs);
            OUTPUTS_HELD.with_borrow_mut(|(numbers, bytes)| {
                for start in all.clone().step_by(OUTPUTS) {
                    let range = start..(start + OUTPUTS).min(all.end);
                    let weight = decoded(weight, range.clone(), numbers, bytes);
                    let (origin, target, prefetch) = (start, y, None);
                    // Ranges of different tasks do not overlap, as `Target` demands.
                    let call = Call { weight, origin, bias, x, rows, range, target, prefetch };
                    with_held(|held| tier.run(Product { call, held }));
                }
            });
        };
        Tasks::new(outputs.div_ceil(share), weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, _: u64) -> Scratch {
        let thread = inputs.saturating_mul((2 * OUTPUTS * size_of::<f32>()) as u64);
        Scratch { activations: 0, thread, buffers: "decoded outputs" }
    }
}

/// Some outputs as a matrix of f32.
fn decoded<'b>(
    weight: Coded<'_>,
    outputs: Range<usize>,
    numbers: &mut Vec<f32>,
    bytes: &'b mut Vec<u8>,
) -> Matrix<'b> {
    let count = outputs.len() * weight.inputs;
    let numbers = kept(numbers, count, 0.0);
    weight.decode(outputs, numbers);
    let bytes = kept(bytes, count * F32::BYTES, 0);
    F32::store(numbers, bytes);
    Matrix { bytes, float: FloatType::F32, inputs: weight.inputs }
}
