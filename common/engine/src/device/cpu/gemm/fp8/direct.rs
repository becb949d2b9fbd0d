//! The GEMV, and the GEMM of a few rows, with FP8 weights: these are read in place, once for all rows.
//!
//! Accumulators are those of [`float`](crate::device::cpu::gemm::float) with the weights dequantized to f32: each
//! weight times its scale is rounded to that once.

use std::ops::Range;

use super::halves::{CHUNK, Halves};
use super::matrix::{Fp8Matrix, Row};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::isa::prefetch::{AHEAD, Prefetch};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

/// Rows that are few: as many as one output's accumulators stay in registers for.
pub(super) const FEW_ROWS: usize = 3;
/// Outputs of a register tile of one row, where these share their scales.
pub(super) const STRIP: usize = 4;

/// One task of a product: all rows, some outputs.
pub(super) struct Direct<'a> {
    pub(super) weight: Fp8Matrix<'a>,
    /// One element per output.
    pub(super) bias: Option<&'a [f32]>,
    /// `[rows, inputs]`.
    pub(super) x: &'a [f32],
    /// [`FEW_ROWS`] at most.
    pub(super) rows: usize,
    /// The outputs to compute.
    pub(super) range: Range<usize>,
    /// `[rows, outputs]`.
    pub(super) target: Target<'a>,
    /// What is prefetched of the weights.
    pub(super) prefetch: Prefetch,
}

impl Kernel for Direct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.rows {
            0 => {}
            1 if self.weight.is_shared(self.range.start, STRIP) => {
                self.strips::<S, STRIP, 1, true>(simd);
            }
            1 => self.strips::<S, 2, 1, false>(simd),
            2 => self.strips::<S, 2, 2, false>(simd),
            FEW_ROWS => self.strips::<S, 1, FEW_ROWS, true>(simd),
            _ => unreachable!("more rows go another way"),
        }
    }
}

impl Direct<'_> {
    /// The whole task, `OUTS` outputs at a time; `SHARED`: these share their scales.
    #[inline(always)]
    fn strips<S: Simd, const OUTS: usize, const ROWS: usize, const SHARED: bool>(&self, simd: S) {
        let mut halves = [const { Halves::ZERO }; OUTS];
        let mut output = self.range.start;
        while output + OUTS <= self.range.end {
            self.tile::<S, OUTS, ROWS, SHARED>(simd, output, &mut halves);
            output += OUTS;
        }
        while output < self.range.end {
            let (one, _) = halves.split_first_chunk_mut().expect("there are outputs");
            self.tile::<S, 1, ROWS, true>(simd, output, one);
            output += 1;
        }
    }

    /// A register tile: `OUTS × ROWS` elements of the product from `output` on, over all inputs.
    #[inline(always)]
    fn tile<S: Simd, const OUTS: usize, const ROWS: usize, const SHARED: bool>(
        &self,
        simd: S,
        output: usize,
        halves: &mut [Halves; OUTS],
    ) {
        let (inputs, width) = (self.weight.inputs, self.weight.width());
        let mut x: [(&[[f32; LANES]], &[f32]); ROWS] = [(&[], &[]); ROWS];
        for (r, x) in x.iter_mut().enumerate() {
            *x = self.x[r * inputs..][..inputs].as_chunks();
        }
        let mut w = [self.weight.row(output); OUTS];
        for (o, w) in w.iter_mut().enumerate() {
            *w = self.weight.row(output + o);
        }
        // The strips to come are prefetched in the order that they lie in, which memory is fastest in; or else these.
        let distance = if self.prefetch.far { AHEAD.max(OUTS * inputs) } else { 0 };
        let mut ahead = w[0].numbers.as_ptr().wrapping_add(distance);

        let mut sums = [[[0.0; LANES]; ROWS]; OUTS];
        let mut start = 0;
        while start < inputs {
            let end = (start + CHUNK).min(inputs);
            simd.apart(Halve { w: &w, start, ahead, halves: &mut *halves });
            ahead = ahead.wrapping_add(OUTS * (end - start));
            let mut of_chunk: [&[[f32; LANES]]; ROWS] = [&[]; ROWS];
            for r in 0..ROWS {
                of_chunk[r] = &x[r].0[start / LANES..end / LANES];
            }
            let (w, x, sums, block) = (&w, of_chunk, &mut sums, start / width);
            simd.apart(Multiply::<_, _, SHARED> { halves, w, block, width, x, sums });
            start = end;
        }
        let tail = inputs % LANES;
        if tail > 0 {
            let vector = inputs % CHUNK / LANES;
            for o in 0..OUTS {
                let factor = w[o].factor((inputs - tail) / width);
                let halves = simd.load_f16(&halves[o].vectors()[vector]);
                let mut weights = [0.0; LANES];
                simd.store(simd.mul(halves, simd.splat(factor)), &mut weights);
                weights[tail..].fill(0.0); // Zero times a scale may be no number.
                let weights = simd.load(&weights);
                for r in 0..ROWS {
                    let mut padded = [0.0; LANES];
                    padded[..tail].copy_from_slice(x[r].1);
                    let sum = simd.load(&sums[o][r]);
                    simd.store(simd.mul_add(weights, simd.load(&padded), sum), &mut sums[o][r]);
                }
            }
        }
        for (o, sums) in sums.into_iter().enumerate() {
            let bias = self.bias.map_or(0.0, |bias| bias[output + o]);
            for (r, sum) in sums.into_iter().enumerate() {
                let value = simd.sum(simd.load(&sum)) + bias;
                // SAFETY: every output belongs to one task.
                unsafe { self.target.part(r, output + o, 1)[0].write(value) };
            }
        }
    }
}

/// Makes f16 of a chunk of the FP8 weights of some outputs.
struct Halve<'a, const OUTS: usize> {
    w: &'a [Row<'a>; OUTS],
    /// The first of the inputs.
    start: usize,
    /// What is prefetched, as much as there is to read.
    ahead: *const u8,
    halves: &'a mut [Halves; OUTS],
}

impl<const OUTS: usize> Kernel for Halve<'_, OUTS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Halve { w, start, mut ahead, halves } = self;
        for o in 0..OUTS {
            halves[o].set(simd, &w[o], start, ahead);
            ahead = ahead.wrapping_add(CHUNK.min(w[o].numbers.len() - start));
        }
    }
}

/// The micro-kernel: adds the products of a chunk to the accumulators of some outputs and rows; `SHARED`: the outputs
/// share their scales.
struct Multiply<'a, const OUTS: usize, const ROWS: usize, const SHARED: bool> {
    halves: &'a [Halves; OUTS],
    w: &'a [Row<'a>; OUTS],
    /// Which block of inputs that shares a scale the first is in,
    block: usize,
    /// and how many inputs it has.
    width: usize,
    x: [&'a [[f32; LANES]]; ROWS],
    sums: &'a mut [[[f32; LANES]; ROWS]; OUTS],
}

impl<const OUTS: usize, const ROWS: usize, const SHARED: bool> Kernel
    for Multiply<'_, OUTS, ROWS, SHARED>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Multiply { halves, w, mut block, width, x, sums } = self;
        let mut held = [[simd.splat(0.0); ROWS]; OUTS];
        for o in 0..OUTS {
            for r in 0..ROWS {
                held[o][r] = simd.load(&sums[o][r]);
            }
        }
        let vectors = x[0].len();
        let mut start = 0;
        while start < vectors {
            let count = (width / LANES).min(vectors - start);
            let mut factors = [simd.splat(w[0].factor(block)); OUTS];
            if !SHARED {
                for o in 1..OUTS {
                    factors[o] = simd.splat(w[o].factor(block));
                }
            }
            let mut of_w: [&[[u8; 2 * LANES]]; OUTS] = [&[]; OUTS];
            let mut of_x: [&[[f32; LANES]]; ROWS] = [&[]; ROWS];
            for o in 0..OUTS {
                of_w[o] = &halves[o].vectors()[start..][..count];
            }
            for r in 0..ROWS {
                of_x[r] = &x[r][start..][..count];
            }
            for i in 0..count {
                let mut xs = [simd.splat(0.0); ROWS];
                for r in 0..ROWS {
                    xs[r] = simd.load(&of_x[r][i]);
                }
                for o in 0..OUTS {
                    let weights = simd.mul(simd.load_f16(&of_w[o][i]), factors[o]);
                    for r in 0..ROWS {
                        held[o][r] = simd.mul_add(weights, xs[r], held[o][r]);
                    }
                }
            }
            start += count;
            block += 1;
        }
        for o in 0..OUTS {
            for r in 0..ROWS {
                simd.store(held[o][r], &mut sums[o][r]);
            }
        }
    }
}
