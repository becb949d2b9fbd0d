//! GEMM and GEMV in f32 with weights in f32, f16 and bf16, which are widened as they are multiplied: the
//! kernel of any processor.
//!
//! An accumulator has sixteen lanes, of which lane `i` adds up the products of every sixteenth input from `i` on, in
//! the order of [`Form`]; then the lanes are added up as [`Simd::sum`] does. `direct` is the GEMV and the GEMM of a few
//! rows, `blocks` the GEMM of many, to the same bits.

mod blocks;
mod call;
mod direct;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

pub(super) use self::blocks::Held;
use cake_checkpoint::FloatType;

use self::blocks::{LEAST_ROWS, OUTPUTS};
pub(super) use self::call::Call;
use self::direct::STRIP;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Matrix, Weight, WeightKind};
use crate::device::cpu::isa::prefetch::Prefetch;
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads, for_each_mut};

/// Weight bytes that a task reads again and again when there are several rows: what stays in a
/// second-level cache beside the activations.
const TASK_BYTES: usize = 256 << 10;
/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;

/// Outputs that are dequantized at once beside few rows, which gain nothing by blocks.
const FEW_OUTPUTS: usize = 2 * STRIP;

thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held::new()) };
    static DECODED: RefCell<(Vec<f32>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// How many outputs that are no plain floats to dequantize at once, for a product with so many rows.
pub(super) fn outputs_at_once(rows: usize) -> usize {
    if rows < LEAST_ROWS { FEW_OUTPUTS } else { OUTPUTS }
}

/// Lends out a thread's buffers of dequantized outputs: for the f32, and for the bytes that are multiplied.
pub(super) fn with_decoded<R>(use_it: impl FnOnce(&mut Vec<f32>, &mut Vec<u8>) -> R) -> R {
    DECODED.with_borrow_mut(|(numbers, bytes)| use_it(numbers, bytes))
}

/// The memory of these buffers, for outputs of so many inputs.
pub(super) fn decoded_scratch(inputs: u64) -> Scratch {
    let thread = inputs.saturating_mul((2 * OUTPUTS * size_of::<f32>()) as u64);
    Scratch { activations: 0, thread, buffers: "decoded outputs" }
}

/// Lends out a thread's buffers for GEMMs of many rows.
pub(super) fn with_held<R>(use_it: impl FnOnce(&RefCell<Held>) -> R) -> R {
    HELD.with(use_it)
}

/// The GEMM and GEMV in f32 with weights in f32, f16 or bf16.
pub(crate) struct Float;

// SAFETY: `Product` writes all rows of its outputs, and the tasks' ranges are all outputs.
unsafe impl Gemm for Float {
    fn form(&self, kind: WeightKind) -> Form {
        match kind {
            WeightKind::Float(FloatType::BF16) => Form::EvensFirst,
            _ => Form::F32,
        }
    }

    fn prepare<'x>(&self, _: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        match self.form(weight.kind()) {
            Form::EvensFirst => {
                let (_, _, parallel) = weight.check(x, None);
                Prepared::new(x, Form::EvensFirst, evens_first(x, weight.inputs(), parallel))
            }
            _ => Prepared::plain(x),
        }
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let weight = weight.float();
        let (rows, outputs, parallel) = weight.check(x.values(), bias);
        let x = match weight.float {
            FloatType::BF16 => x.made::<Vec<f32>>(Form::EvensFirst),
            FloatType::F32 | FloatType::F16 => x.values(),
        };
        let target = y;
        let task_outputs = task_outputs(&weight, outputs, rows);
        let prefetch = Some(Prefetch::here());
        let run = move |task: usize| {
            let start = task * task_outputs;
            let range = start..(start + task_outputs).min(outputs);
            // Ranges of different tasks do not overlap, as `Target` demands.
            with_held(|held| {
                let origin = 0;
                let call = Call { weight, origin, bias, x, rows, range, target, prefetch };
                tier.run(Product { call, held });
            });
        };
        Tasks::new(outputs.div_ceil(task_outputs), weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let activations = inputs.saturating_mul(rows).saturating_mul(size_of::<f32>() as u64);
        Scratch { activations, thread: Held::BYTES as u64, buffers: "blocks of numbers" }
    }
}

/// Rows of so many inputs as [`Element::load_two`](crate::device::cpu::element::Element::load_two) takes pairs: of
/// every 32 inputs those at even places first; fewer at the end stay as they are.
fn evens_first(x: &[f32], inputs: usize, parallel: bool) -> Vec<f32> {
    let mut paired = x.to_vec();
    let run = |_: usize, (to, from): &mut (&mut [f32], &[f32])| {
        let blocks = to.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut();
        for (to, from) in blocks.zip(from.as_chunks::<{ 2 * LANES }>().0) {
            for lane in 0..LANES {
                to[lane] = from[2 * lane];
                to[LANES + lane] = from[2 * lane + 1];
            }
        }
    };
    let mut rows: Vec<_> = paired.chunks_exact_mut(inputs).zip(x.chunks_exact(inputs)).collect();
    match parallel {
        true => for_each_mut(&mut rows, run),
        false => rows.iter_mut().for_each(|row| run(0, row)),
    }
    paired
}

/// Outputs of one task: whole tiles, or whole blocks where there are as many, few enough to share out and, where
/// several rows go over them one by one, to stay in cache.
fn task_outputs(weight: &Matrix<'_>, outputs: usize, rows: usize) -> usize {
    let tasks = current_threads() * TASKS_PER_THREAD;
    let share = outputs.div_ceil(tasks);
    let fits = TASK_BYTES / weight.row_bytes();
    match rows {
        LEAST_ROWS.. if share >= OUTPUTS => share.next_multiple_of(OUTPUTS),
        0 | 1 | LEAST_ROWS.. => share.next_multiple_of(STRIP).max(STRIP),
        _ => share.min(fits).next_multiple_of(STRIP).max(STRIP),
    }
}

/// One task of a product.
pub(super) struct Product<'a> {
    pub(super) call: Call<'a>,
    /// This thread's buffers for many rows.
    pub(super) held: &'a RefCell<Held>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.call.rows {
            LEAST_ROWS.. => self.call.blocks(simd, &mut self.held.borrow_mut()),
            _ => self.call.direct(simd),
        }
    }
}
