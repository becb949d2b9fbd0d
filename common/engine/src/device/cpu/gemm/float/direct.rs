//! The GEMV, and the GEMM of a few rows, with an f32, f16 or bf16 matrix: weights are widened as they come from memory,
//! once for each register tile of one row, two or four.

use cake_checkpoint::FloatType;

use super::call::Call;
use crate::device::cpu::element::{Bf16, Element, F16, F32};
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE, Prefetch};
use crate::device::cpu::isa::simd::{LANES, Simd};

/// Outputs of a register tile. Part of no contract: results do not depend on it.
pub(super) const STRIP: usize = 4;
/// How far ahead in each row of weights a line is prefetched into the first-level cache: of 128 and 512 bytes the one
/// that helped more.
const NEAR: usize = 512;

/// Some rows going over the weights of a task.
#[derive(Clone, Copy)]
struct Pass {
    /// The first of them.
    row: usize,
    /// Of so many passes, which one.
    index: usize,
    count: usize,
}

impl Call<'_> {
    /// All of the task.
    #[inline(always)]
    pub(super) fn direct<S: Simd>(&self, simd: S) {
        match self.weight.float {
            FloatType::F32 => self.passes::<S, F32>(simd),
            FloatType::F16 => self.passes::<S, F16>(simd),
            FloatType::BF16 => self.passes::<S, Bf16>(simd),
        }
    }

    /// Tiles of rows outside, strips of outputs inside: the activations of a tile stay in the
    /// first-level cache, the weights of the task in the second.
    #[inline(always)]
    fn passes<S: Simd, E: Element>(&self, simd: S) {
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

    /// The micro-kernel: a register tile of `OUTS × ROWS` elements of the product, from row `pass.row` and from
    /// `output` on, over all inputs.
    #[inline(always)]
    fn tile<S: Simd, E: Element, const OUTS: usize, const ROWS: usize>(
        &self,
        simd: S,
        output: usize,
        pass: Pass,
    ) {
        let row = pass.row;
        let prefetch = self.prefetch.unwrap_or(Prefetch::NONE);
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
        let mut until_turn = if prefetch.far { pass.index } else { usize::MAX };
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
                if prefetch.near {
                    for line in (0..size_of_val(chunks)).step_by(CACHE_LINE) {
                        simd.prefetch_near(chunks.as_ptr().cast::<u8>().wrapping_add(NEAR + line));
                    }
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
