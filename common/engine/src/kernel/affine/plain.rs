//! Whole-number products in plain Rust, which the compiler turns into multiply-adds of 16-bit pairs.

use std::ops::Range;

use super::super::Tier;
use super::super::element::FloatType;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::target::Target;
use super::activations::Activations;
use super::{AffineMatrix, Bits, Call, MAX_GROUP};

/// Codes of [`LANES`] outputs that are widened at once.
type Wide = [[i16; MAX_GROUP]; LANES];

/// The product in the arithmetic of [`Numerics::Fast`](crate::options::Numerics::Fast); `x` is in words.
pub(super) fn matmul(tier: Tier, call: Call<'_>, x: &Activations) -> Vec<f32> {
    call.by_outputs(call.share(LANES), |outputs, target| {
        tier.run(Task { call, x, outputs, target });
    })
}

/// All rows, some outputs.
struct Task<'a> {
    call: Call<'a>,
    /// In words.
    x: &'a Activations,
    outputs: Range<usize>,
    target: Target<'a>,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.call.weight.group {
            32 => self.blocks::<S, 32>(simd),
            64 => self.blocks::<S, 64>(simd),
            _ => self.blocks::<S, MAX_GROUP>(simd),
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn blocks<S: Simd, const GROUP: usize>(&self, simd: S) {
        let mut start = self.outputs.start;
        while start < self.outputs.end {
            let outputs = start..(start + LANES).min(self.outputs.end);
            start = outputs.end;
            self.block::<S, GROUP>(simd, outputs);
        }
    }

    /// All rows of at most [`LANES`] outputs.
    #[inline(always)]
    fn block<S: Simd, const GROUP: usize>(&self, simd: S, outputs: Range<usize>) {
        let weight = self.call.weight.rows(outputs.clone());
        let mut wide = [[0; MAX_GROUP]; LANES];
        for group in 0..weight.groups() {
            widen::<GROUP>(&weight, group, &mut wide);
            let scale = params(simd, weight.params, weight.scales, weight.groups(), group);
            let bias = params(simd, weight.params, weight.biases, weight.groups(), group);
            for row in 0..self.call.rows() {
                let x = &self.x.words()[row * weight.inputs + group * GROUP..][..GROUP];
                let mut dots = [0.0; LANES];
                for (dot_to, wide) in dots.iter_mut().zip(&wide) {
                    *dot_to = dot(&wide[..GROUP], x) as f32;
                }
                // SAFETY: every output belongs to one task, which holds one part at a time.
                let to = unsafe { self.target.part(row, outputs.start, outputs.len()) };
                let mut sums = [0.0; LANES];
                sums[..to.len()].copy_from_slice(to);
                let s = simd.splat(self.x.scales(row)[group]);
                let sum = simd.splat(self.x.sums(row)[group]);
                let y = simd.mul_add(simd.mul(scale, s), simd.load(&dots), simd.load(&sums));
                simd.store(simd.mul_add(bias, sum, y), &mut sums);
                to.copy_from_slice(&sums[..to.len()]);
            }
        }
        if let Some(bias) = self.call.bias {
            for row in 0..self.call.rows() {
                // SAFETY: as above.
                let to = unsafe { self.target.part(row, outputs.start, outputs.len()) };
                for (to, bias) in to.iter_mut().zip(&bias[outputs.clone()]) {
                    *to += bias;
                }
            }
        }
    }
}

/// The codes of one group of every output, in the order of [`Activations`]; outputs past the end
/// keep what was there.
#[inline(always)]
fn widen<const GROUP: usize>(weight: &AffineMatrix<'_>, group: usize, wide: &mut Wide) {
    let bytes = GROUP / weight.bits.per_byte();
    for (codes, wide) in weight.codes.chunks_exact(weight.row_bytes()).zip(wide) {
        let codes = &codes[group * bytes..][..bytes];
        match weight.bits {
            Bits::Four => {
                let wide = wide.as_chunks_mut::<32>().0;
                for (codes, wide) in codes.as_chunks::<16>().0.iter().zip(wide) {
                    for i in 0..16 {
                        wide[i] = i16::from(codes[i] & 0xf);
                        wide[16 + i] = i16::from(codes[i] >> 4);
                    }
                }
            }
            Bits::Eight => {
                for (code, wide) in codes.iter().zip(wide) {
                    *wide = i16::from(*code);
                }
            }
        }
    }
}

/// The scales or biases of one group, a lane for each output.
#[inline(always)]
fn params<S: Simd>(simd: S, float: FloatType, bytes: &[u8], groups: usize, group: usize) -> S::V {
    let mut lanes = [0.0; LANES];
    for (lane, row) in lanes.iter_mut().zip(bytes.chunks_exact(groups * float.bytes())) {
        *lane = float.value(row, group);
    }
    simd.load(&lanes)
}

/// Exact: at most 128 products, each at most 255 · 32639, which is below 2^23.
#[inline(always)]
fn dot(codes: &[i16], x: &[i16]) -> i32 {
    codes.iter().zip(x).map(|(code, x)| i32::from(*code) * i32::from(*x)).sum()
}
