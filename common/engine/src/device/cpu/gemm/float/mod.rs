//! Products in f32 with matrices of f32, f16 and bf16, which are widened as they are multiplied: the
//! kernel of any processor.

use std::ops::Range;

use crate::device::cpu::element::{Bf16, Element, F16, F32, FloatType};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Encoding, Matrix, Weight};
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::{Tasks, current_threads, for_each_mut};

/// Outputs computed together. Part of no contract: results do not depend on it.
pub(super) const STRIP: usize = 4;
/// How far ahead in each row of weights a line is prefetched into the first-level cache: of 128 and
/// 512 bytes the one that helped more. Took 7 % off the time of one row beside bf16.
const NEAR: usize = 512;
/// Weight bytes that a task reads again and again when there are several rows: what stays in a
/// second-level cache beside the activations.
const TASK_BYTES: usize = 256 << 10;
/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;

/// The product in f32 with numbers of any type.
pub(crate) struct Float;

// SAFETY: `Product` writes all rows of its outputs, and the tasks' ranges are all outputs.
unsafe impl Gemm for Float {
    fn form(&self, encoding: Encoding) -> Form {
        match encoding {
            Encoding::Float(FloatType::Bf16) => Form::EvensFirst,
            _ => Form::F32,
        }
    }

    fn prepare<'x>(&self, _: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        match self.form(weight.encoding()) {
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
            FloatType::Bf16 => x.made::<Vec<f32>>(Form::EvensFirst),
            FloatType::F32 | FloatType::F16 => x.values(),
        };
        let target = y;
        let task_outputs = task_outputs(&weight, outputs, rows);
        let run = move |task: usize| {
            let start = task * task_outputs;
            let range = start..(start + task_outputs).min(outputs);
            // Ranges of different tasks do not overlap, as `Target` demands.
            tier.run(Product { weight, origin: 0, bias, x, rows, range, target });
        };
        Tasks::new(outputs.div_ceil(task_outputs), weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let activations = inputs.saturating_mul(rows).saturating_mul(size_of::<f32>() as u64);
        Scratch { activations, ..Scratch::default() }
    }
}

/// Rows of so many inputs as [`Element::load_two`] takes pairs: of every 32 inputs those at even
/// places first; fewer at the end stay as they are.
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

/// Outputs of one task: a multiple of the strip, small enough to share out and, with several
/// rows, to stay in cache while the rows pass.
fn task_outputs(weight: &Matrix<'_>, outputs: usize, rows: usize) -> usize {
    let tasks = current_threads() * TASKS_PER_THREAD;
    let share = outputs.div_ceil(tasks);
    let fits = TASK_BYTES / weight.row_bytes();
    let wanted = if rows > 1 { share.min(fits) } else { share };
    wanted.next_multiple_of(STRIP).max(STRIP)
}

/// Some rows going over the weights of a task.
#[derive(Clone, Copy)]
struct Pass {
    /// The first of them.
    row: usize,
    /// Of so many passes, which one.
    index: usize,
    count: usize,
}

/// One task of a product: all rows, some outputs.
pub(super) struct Product<'a> {
    /// The outputs from `origin` on.
    pub(super) weight: Matrix<'a>,
    /// The output that the first row of `weight` belongs to.
    pub(super) origin: usize,
    /// One element per output, counted from output 0.
    pub(super) bias: Option<&'a [f32]>,
    /// `[rows, inputs]`, as the elements of the weight are loaded.
    pub(super) x: &'a [f32],
    /// Rows of activations.
    pub(super) rows: usize,
    /// The outputs to compute, from `origin` on.
    pub(super) range: Range<usize>,
    /// `[rows, outputs]`.
    pub(super) target: Target<'a>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.weight.float {
            FloatType::F32 => self.run_as::<S, F32>(simd),
            FloatType::F16 => self.run_as::<S, F16>(simd),
            FloatType::Bf16 => self.run_as::<S, Bf16>(simd),
        }
    }
}

impl Product<'_> {
    /// Tiles of rows outside, strips of outputs inside: the activations of a tile stay in the
    /// first-level cache, the weights of the task in the second.
    #[inline(always)]
    fn run_as<S: Simd, E: Element>(&self, simd: S) {
        let most = if S::WIDE_TILES { 4 } else { 2 };
        // The last one, two or three rows are a one and a two.
        let passes = self.rows / most + (self.rows % most).count_ones() as usize;
        let mut row = 0;
        for pass in 0..passes {
            let pass = Pass { row, index: pass, count: passes };
            let left = self.rows - row;
            if S::WIDE_TILES && left >= 4 {
                self.strips::<S, E, STRIP, 4>(simd, pass);
                row += 4;
            } else if S::WIDE_TILES && left >= 2 {
                self.strips::<S, E, STRIP, 2>(simd, pass);
                row += 2;
            } else if left >= 2 {
                self.strips::<S, E, 2, 2>(simd, pass);
                row += 2;
            } else {
                self.strips::<S, E, STRIP, 1>(simd, pass);
                row += 1;
            }
        }
    }

    #[inline(always)]
    fn strips<S: Simd, E: Element, const OUTS: usize, const ROWS: usize>(
        &self,
        simd: S,
        pass: Pass,
    ) {
        let mut output = self.range.start;
        while output + OUTS <= self.range.end {
            self.tile::<S, E, OUTS, ROWS>(simd, output, pass);
            output += OUTS;
        }
        while output < self.range.end {
            self.tile::<S, E, 1, ROWS>(simd, output, pass);
            output += 1;
        }
    }

    /// `OUTS × ROWS` elements of the product from `(pass.row, output)` on.
    #[inline(always)]
    fn tile<S: Simd, E: Element, const OUTS: usize, const ROWS: usize>(
        &self,
        simd: S,
        output: usize,
        pass: Pass,
    ) {
        let row = pass.row;
        let inputs = self.weight.inputs;
        let row_bytes = inputs * E::BYTES;
        let vectors = inputs / LANES;
        let mut x: [(&[[f32; LANES]], &[f32]); ROWS] = [(&[], &[]); ROWS];
        for (r, x) in x.iter_mut().enumerate() {
            let (whole, tail) = self.x[(row + r) * inputs..][..inputs].as_chunks();
            *x = (&whole[..vectors], tail);
        }
        let mut w: [(&[E::Chunk], &[u8]); OUTS] = [(&[], &[]); OUTS];
        for (o, w) in w.iter_mut().enumerate() {
            let row = output + o - self.origin;
            let bytes = &self.weight.bytes[row * row_bytes..][..row_bytes];
            let (whole, tail) = E::chunks(bytes);
            *w = (&whole[..vectors], tail);
        }

        // One pass over the task prefetches the strips to come, in the order they lie in, which is
        // the order that memory is fastest in; this loop's own, row beside row, is not. Of
        // several passes each prefetches its share of the next task, so that memory never waits for
        // arithmetic.
        let ahead = match pass.count {
            1 => AHEAD.max(OUTS * row_bytes),
            _ => self.range.len() * row_bytes,
        };
        let ahead = w[0].0.as_ptr().cast::<u8>().wrapping_add(ahead);
        let mut until_turn = pass.index;
        let mut sums = [[simd.splat(0.0); ROWS]; OUTS];
        for i in 0..vectors / 2 {
            let mut xs = [(simd.splat(0.0), simd.splat(0.0)); ROWS];
            for r in 0..ROWS {
                let [first, second] = &x[r].0.as_chunks().0[i];
                xs[r] = (simd.load(first), simd.load(second));
            }
            if until_turn == 0 {
                let bytes = OUTS * 2 * size_of::<E::Chunk>();
                for line in (0..bytes).step_by(CACHE_LINE) {
                    simd.prefetch(ahead.wrapping_add(i * bytes + line));
                }
                until_turn = pass.count;
            }
            until_turn -= 1;
            for o in 0..OUTS {
                let chunks = &w[o].0.as_chunks().0[i];
                for line in (0..size_of_val(chunks)).step_by(CACHE_LINE) {
                    simd.prefetch_near(chunks.as_ptr().cast::<u8>().wrapping_add(NEAR + line));
                }
                let (first, second) = E::load_two(simd, chunks);
                for r in 0..ROWS {
                    sums[o][r] = simd.mul_add(first, xs[r].0, sums[o][r]);
                    sums[o][r] = simd.mul_add(second, xs[r].1, sums[o][r]);
                }
            }
        }
        if !vectors.is_multiple_of(2) {
            for r in 0..ROWS {
                let x = simd.load(&x[r].0[vectors - 1]);
                for o in 0..OUTS {
                    let wide = E::load(simd, &w[o].0[vectors - 1]);
                    sums[o][r] = simd.mul_add(wide, x, sums[o][r]);
                }
            }
        }
        if !inputs.is_multiple_of(LANES) {
            for r in 0..ROWS {
                let mut padded = [0.0; LANES];
                padded[..x[r].1.len()].copy_from_slice(x[r].1);
                let x = simd.load(&padded);
                for o in 0..OUTS {
                    sums[o][r] = simd.mul_add(E::load_tail(simd, w[o].1), x, sums[o][r]);
                }
            }
        }
        for (o, sums) in sums.into_iter().enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[output + o]);
            for (r, sum) in sums.into_iter().enumerate() {
                let value = simd.sum(sum) + bias;
                // SAFETY: every output belongs to one task.
                unsafe { self.target.part(row + r, output + o, 1)[0].write(value) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::pool::Pool;
    use crate::testing::{Random, assert_product, digest, product};

    /// Relative to the sum of absolute products: 2^-24 per rounding, some hundred in a row at most.
    const TOLERANCE: f64 = 1e-5;

    /// `outputs × inputs` random weights from an odd address on, with their values.
    fn weights(random: &mut Random, float: FloatType, elements: usize) -> (Vec<u8>, Vec<f32>) {
        let values: Vec<f32> = (0..elements).map(|_| random.signed()).collect();
        let mut bytes = vec![0; 1 + elements * float.bytes()];
        match float {
            FloatType::F32 => F32::store(&values, &mut bytes[1..]),
            FloatType::F16 => F16::store(&values, &mut bytes[1..]),
            FloatType::Bf16 => Bf16::store(&values, &mut bytes[1..]),
        }
        let stored = float.widen(&bytes[1..]);
        (bytes, stored)
    }

    fn multiply(tier: Tier, weight: Matrix<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        product(&Float, tier, Weight::Float(weight), bias, x)
    }

    #[test]
    fn agrees_with_f64_for_odd_shapes_types_and_addresses() {
        let mut random = Random::new(11);
        for case in 0..60 {
            let inputs = 1 + random.below(130);
            let outputs = 1 + random.below(40);
            let rows = 1 + random.below(9);
            for float in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
                let (bytes, stored) = weights(&mut random, float, inputs * outputs);
                let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
                let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let bias: Vec<f32> = (0..outputs).map(|_| random.signed()).collect();
                let matrix = Matrix { bytes: &bytes[1..], float, inputs };
                for tier in Tier::all() {
                    let y = multiply(tier, matrix, Some(&bias), &x);
                    let what = format!("case {case} {float:?} {tier:?}");
                    assert_product(&y, &exact, (&stored, &bias), TOLERANCE, &what);
                }
            }
        }
    }

    #[test]
    fn rows_and_threads_do_not_change_a_bit() {
        let mut random = Random::new(12);
        let (inputs, outputs, rows) = (203, 301, 7);
        let (bytes, _) = weights(&mut random, FloatType::Bf16, inputs * outputs);
        let matrix = Matrix { bytes: &bytes[1..], float: FloatType::Bf16, inputs };
        let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
        for tier in Tier::all() {
            let together = multiply(tier, matrix, None, &x);
            for threads in [1, 2, 3, 5] {
                let pool = Pool::new(threads).unwrap();
                let again = pool.install(|| multiply(tier, matrix, None, &x));
                assert_eq!(together, again, "{tier:?} {threads} threads");
            }
            for row in 0..rows {
                let alone = multiply(tier, matrix, None, &x[row * inputs..][..inputs]);
                assert_eq!(together[row * outputs..][..outputs], alone, "{tier:?} row {row}");
            }
        }
    }

    #[test]
    fn fused_tiers_agree_to_the_bit() {
        let mut random = Random::new(13);
        let (inputs, outputs) = (150, 33);
        let floats = [
            (FloatType::F32, 0x79bd_e566_6909_2938),
            (FloatType::F16, 0x4739_d8e2_ddd2_904e),
            (FloatType::Bf16, 0x9ab6_fccc_dfee_56ce),
        ];
        for (float, expected) in floats {
            let (bytes, _) = weights(&mut random, float, inputs * outputs);
            let matrix = Matrix { bytes: &bytes[1..], float, inputs };
            let x: Vec<f32> = (0..5 * inputs).map(|_| random.signed()).collect();
            let product = |tier| multiply(tier, matrix, None, &x);
            for tier in Tier::fused() {
                let found = digest(&product(tier));
                assert_eq!(found, expected, "{float:?} {tier:?}: {found:#018x}");
            }
        }
    }
}
