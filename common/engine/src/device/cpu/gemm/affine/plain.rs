//! Integer GEMM and GEMV on codes widened to 16 bits, with the instructions of any tier.
//!
//! The sum of a group is exact: at most 128 products, each at most 255 · 32639, stay below 2^30.
//!
//! In the GEMV, and beside few rows, codes are widened as they are multiplied; beside many they are widened first
//! and all rows pass over them. With NEON they are widened in registers, for many rows, too, unless the processor adds up
//! products of bytes (FEAT_DotProd): then codes are multiplied as they are, and words as two bytes each. The sums are the
//! same. There some outputs are multiplied with the same words at a time, which are read once for all of them.

use std::ops::Range;

use cake_checkpoint::FloatType;

use super::activations::{Activations, Layout, row_bytes};
use super::call::Call;
use crate::device::cpu::element::number;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{
    AffineMatrix, Bits, MAX_GROUP, SHORT_GROUP, Weight, WeightKind,
};
use crate::device::cpu::isa::packed::unpacked;
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd, TOGETHER};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Tasks;

/// Rows up to which widening codes for each of them costs less than storing them widened, where that is done.
const FEW_ROWS: usize = 3;

/// The tasks of a GEMM or GEMV in the arithmetic of [`Numerics::Fast`](crate::options::Numerics::Fast); `x` is in
/// words.
pub(super) fn matmul<'a>(
    tier: Tier,
    call: Call<'a>,
    x: &'a Activations,
    y: Target<'a>,
) -> Tasks<'a> {
    // SAFETY: no task has a part of it yet.
    unsafe { y.zero() }; // Many rows add to it.
    call.by_outputs(call.share(LANES), y, move |outputs, target| {
        tier.run_dots(Task { call, x, outputs, target });
    })
}

/// The integer GEMM and GEMV, with the instructions of any tier.
#[derive(Clone, Copy)]
pub(crate) struct Words;

// SAFETY: `matmul` sets the result to zero before any task adds to it.
unsafe impl Gemm for Words {
    fn form(&self, kind: WeightKind) -> Form {
        Form::Words(kind.affine())
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        let codes = Activations::quantize(tier, &Call::new(*weight, None, x), Layout::Words);
        Prepared::new(x, self.form(weight.kind()), codes)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let call = Call::new(weight, bias, x.values());
        matmul(tier, call, x.made(self.form(weight.kind())), y)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        Scratch { activations: row_bytes(inputs).saturating_mul(rows), ..Scratch::default() }
    }
}

/// One task of the product: all rows, some outputs.
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
        match (self.call.weight.group, self.call.weight.bits) {
            (SHORT_GROUP, Bits::Six) => self.all::<S, SHORT_GROUP, 6>(simd),
            (SHORT_GROUP, _) => self.all::<S, SHORT_GROUP, 8>(simd),
            (32, Bits::Four) => self.all::<S, 32, 4>(simd),
            (32, Bits::Six) => self.all::<S, 32, 6>(simd),
            (32, Bits::Eight) => self.all::<S, 32, 8>(simd),
            (64, Bits::Four) => self.all::<S, 64, 4>(simd),
            (64, Bits::Six) => self.all::<S, 64, 6>(simd),
            (64, Bits::Eight) => self.all::<S, 64, 8>(simd),
            (_, Bits::Four) => self.all::<S, MAX_GROUP, 4>(simd),
            (_, Bits::Six) => self.all::<S, MAX_GROUP, 6>(simd),
            (_, Bits::Eight) => self.all::<S, MAX_GROUP, 8>(simd),
        }
    }
}

impl Task<'_> {
    /// `GROUP` and `BITS` are those of the weight.
    #[inline(always)]
    fn all<S: Simd, const GROUP: usize, const BITS: usize>(&self, simd: S) {
        let mut start = self.outputs.start;
        while start < self.outputs.end {
            let outputs = start..(start + LANES).min(self.outputs.end);
            start = outputs.end;
            match self.call.rows() <= FEW_ROWS {
                true => self.few::<S, GROUP, BITS>(simd, outputs),
                false => self.many::<S, GROUP, BITS>(simd, outputs),
            }
        }
    }

    /// The GEMV, or GEMM of at most [`FEW_ROWS`] rows, with at most [`LANES`] outputs.
    #[inline(always)]
    fn few<S: Simd, const GROUP: usize, const BITS: usize>(&self, simd: S, outputs: Range<usize>) {
        let weight = self.call.weight.rows(outputs.clone());
        let (row_bytes, bytes) = (weight.row_bytes(), group_bytes::<GROUP, BITS>());
        let ahead = weight.codes.as_ptr().wrapping_add(AHEAD.max(LANES * row_bytes));
        let mut y = [simd.splat(0.0); FEW_ROWS];
        for first in (0..weight.groups()).step_by(LANES) {
            let held = first..(first + LANES).min(weight.groups());
            let scales = square(simd, &weight, weight.scales, &held);
            let biases = square(simd, &weight, weight.biases, &held);
            let ahead = ahead.wrapping_add(held.start * LANES * bytes);
            for (row, y) in (0..self.call.rows()).zip(&mut y) {
                let x = &self.x.words()[row * weight.inputs..][..weight.inputs];
                let x = &x[held.start * GROUP..held.end * GROUP];
                // `[group, output]`, output after output as they lie in memory.
                let mut dots = [[0.0; LANES]; LANES];
                let part = held.start * bytes..held.end * bytes;
                if S::DOTS_PACKED {
                    for output in (0..outputs.len()).step_by(TOGETHER) {
                        let codes = parts(together(&weight, output), part.clone());
                        if row == 0 {
                            let from = output * part.len();
                            for line in (from..from + TOGETHER * part.len()).step_by(CACHE_LINE) {
                                simd.prefetch(ahead.wrapping_add(line));
                            }
                        }
                        let x = x.as_chunks::<GROUP>().0.iter();
                        for (group, (x, dots)) in x.zip(&mut dots).enumerate() {
                            let codes = parts(codes, group * bytes..(group + 1) * bytes);
                            let to = &mut dots.as_chunks_mut().0[output / TOGETHER];
                            *to = floats(simd.dots_packed::<GROUP, BITS>(codes, x));
                        }
                    }
                } else {
                    // One after the other: of four at a time compilers make no vectors here.
                    for (output, codes) in weight.codes.chunks_exact(row_bytes).enumerate() {
                        if row == 0 {
                            for line in (0..part.len()).step_by(CACHE_LINE) {
                                simd.prefetch(ahead.wrapping_add(output * part.len() + line));
                            }
                        }
                        let groups = codes[part.clone()].chunks_exact(bytes);
                        let groups = groups.zip(x.as_chunks::<GROUP>().0);
                        for ((codes, x), dots) in groups.zip(&mut dots) {
                            let codes = unpacked::<GROUP, BITS>(codes).map(i16::from);
                            dots[output] = simd.dot(&codes, x) as f32;
                        }
                    }
                }
                let params = held.clone().zip(scales.iter().zip(&biases));
                for ((group, (scale, bias)), dots) in params.zip(&dots) {
                    let s = simd.splat(self.x.scales(row)[group]);
                    let sum = simd.splat(self.x.sums(row)[group]);
                    *y = simd.mul_add(simd.mul(*scale, s), simd.load(dots), *y);
                    *y = simd.mul_add(*bias, sum, *y);
                }
            }
        }
        for (row, y) in (0..self.call.rows()).zip(y) {
            let mut sums = [0.0; LANES];
            simd.store(y, &mut sums);
            if let Some(bias) = self.call.bias {
                for (sum, bias) in sums.iter_mut().zip(&bias[outputs.clone()]) {
                    *sum += bias;
                }
            }
            // SAFETY: every output belongs to one task, which holds one part at a time.
            let to = unsafe { self.target.part(row, outputs.start, outputs.len()) };
            to.iter_mut().zip(sums).for_each(|(to, sum)| _ = to.write(sum));
        }
    }

    /// The GEMM of all rows with at most [`LANES`] outputs. Accumulators lie in the result between groups.
    #[inline(always)]
    fn many<S: Simd, const GROUP: usize, const BITS: usize>(&self, simd: S, outputs: Range<usize>) {
        let weight = self.call.weight.rows(outputs.clone());
        let bytes = group_bytes::<GROUP, BITS>();
        let mut wide = [[0; GROUP]; LANES];
        let quads = outputs.len().div_ceil(TOGETHER);
        let mut packed = [[&[][..]; TOGETHER]; LANES / TOGETHER];
        for group in 0..weight.groups() {
            let held = group * bytes..(group + 1) * bytes;
            if S::DOTS_PACKED {
                for (at, packed) in packed[..quads].iter_mut().enumerate() {
                    *packed = parts(together(&weight, at * TOGETHER), held.clone());
                }
            } else {
                let rows = weight.codes.chunks_exact(weight.row_bytes());
                for (wide, codes) in wide.iter_mut().zip(rows) {
                    *wide = unpacked::<GROUP, BITS>(&codes[held.clone()]).map(i16::from);
                }
            }
            let scale = params(simd, weight.params, weight.scales, weight.groups(), group);
            let bias = params(simd, weight.params, weight.biases, weight.groups(), group);
            for row in 0..self.call.rows() {
                let x = &self.x.words()[row * weight.inputs..][..weight.inputs];
                let x = &x.as_chunks::<GROUP>().0[group];
                let mut dots = [0.0; LANES];
                if S::DOTS_PACKED {
                    for (to, codes) in dots.as_chunks_mut().0.iter_mut().zip(&packed[..quads]) {
                        *to = floats(simd.dots_packed::<GROUP, BITS>(*codes, x));
                    }
                } else {
                    for (to, wide) in dots.iter_mut().zip(&wide) {
                        *to = simd.dot(wide, x) as f32;
                    }
                }
                // SAFETY: every output belongs to one task, which holds one part at a time; `matmul` set all of
                // them.
                let to = unsafe { self.target.written(row, outputs.start, outputs.len()) };
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
                let to = unsafe { self.target.written(row, outputs.start, outputs.len()) };
                for (to, bias) in to.iter_mut().zip(&bias[outputs.clone()]) {
                    *to += bias;
                }
            }
        }
    }
}

/// Whole numbers, rounded.
#[inline(always)]
fn floats(numbers: [i32; TOGETHER]) -> [f32; TOGETHER] {
    let mut floats = [0.0; TOGETHER];
    for (float, number) in floats.iter_mut().zip(numbers) {
        *float = number as f32;
    }
    floats
}

/// The codes of the outputs from `output` on; in the place of one that there is not, of the last one.
#[inline(always)]
fn together<'a>(weight: &AffineMatrix<'a>, output: usize) -> [&'a [u8]; TOGETHER] {
    let row_bytes = weight.row_bytes();
    let last = weight.codes.len() - row_bytes;
    let mut codes: [&[u8]; TOGETHER] = [&[]; TOGETHER];
    for (i, codes) in codes.iter_mut().enumerate() {
        *codes = &weight.codes[last.min((output + i) * row_bytes)..][..row_bytes];
    }
    codes
}

/// The same bytes of each.
#[inline(always)]
fn parts(of: [&[u8]; TOGETHER], bytes: Range<usize>) -> [&[u8]; TOGETHER] {
    let mut codes: [&[u8]; TOGETHER] = [&[]; TOGETHER];
    for (codes, of) in codes.iter_mut().zip(of) {
        *codes = &of[bytes.clone()];
    }
    codes
}

/// The scales or biases of one group, a lane for each output.
#[inline(always)]
fn params<S: Simd>(simd: S, float: FloatType, bytes: &[u8], groups: usize, group: usize) -> S::V {
    let mut lanes = [0.0; LANES];
    for (lane, row) in lanes.iter_mut().zip(bytes.chunks_exact(groups * float.bytes())) {
        *lane = number(float, row, group);
    }
    simd.load(&lanes)
}

/// Scales or biases of at most [`LANES`] groups of as many outputs: for each group a lane for each
/// output, zero where there is none.
#[inline(always)]
fn square<S: Simd>(
    simd: S,
    weight: &AffineMatrix<'_>,
    bytes: &[u8],
    groups: &Range<usize>,
) -> [S::V; LANES] {
    let width = weight.params.bytes();
    let mut rows = [simd.splat(0.0); LANES];
    for (to, row) in rows.iter_mut().zip(bytes.chunks_exact(weight.param_bytes())) {
        let row = &row[groups.start * width..groups.end * width];
        let mut padded = [0; LANES * size_of::<f32>()];
        padded[..row.len()].copy_from_slice(row);
        let half = padded.first_chunk().expect("half of it");
        *to = match weight.params {
            FloatType::F32 => simd.load_f32(&padded),
            FloatType::F16 => simd.load_f16(half),
            FloatType::BF16 => simd.load_bf16(half),
        };
    }
    simd.transpose(rows)
}

/// The bytes that the codes of a group of one output lie in.
const fn group_bytes<const GROUP: usize, const BITS: usize>() -> usize {
    if BITS == 4 { GROUP / 2 } else { GROUP }
}
