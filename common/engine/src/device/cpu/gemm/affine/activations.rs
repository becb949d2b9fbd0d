//! Activations rounded to 16 bits, or to 8, each group of inputs with a scale of its own.

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use super::call::Call;
use crate::device::cpu::buffer::{Number, Uninit, UninitVec};
use crate::device::cpu::gemm::weight::{Acts, AffineMatrix, Bits, MAX_GROUP, SHORT_GROUP};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::for_each_mut;

/// Inputs within which the order of codes beside 4-bit weights is changed.
const ORDER: usize = 32;
/// Adding it moves the whole number nearest to a small f32, ties to even, into the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23
/// Largest magnitude of a code: the largest whose bytes both have a sign, 127 · 256 + 127.
const MAX_CODE: f32 = 32_639.0;
/// The same of [`Acts::Bytes`]. Squared, what that rounds is a few hundredths of what rounding the weights to so few steps
/// did, and instructions that multiply bytes do so twice as fast.
const MAX_BYTE_CODE: f32 = 127.0;
const _: () = assert!(MAX_BYTE_CODE <= 127.0, "codes of one signed byte");
/// Codes of a piece of [`Layout::Lanes`] at most, see [`lanes`]: whole rows of them are whole pieces of all kinds.
const PIECE: usize = 64;
/// Bytes in a vector of [`Layout::Lanes`].
const VECTOR_BYTES: usize = 32;
/// Bytes between rows of a plane beyond their codes: vectors may reach past the end of a row, and
/// rows of a power of two do not compete for the same places of the cache.
const PADDING: usize = 128;

/// How a kernel reads codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// As numbers of 16 bits.
    Words,
    /// In the order in which vectors of weights come apart, see [`lanes`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    Lanes,
    /// As two bytes, `code = 256 · high + low`, both signed: for instructions that multiply bytes. Of [`Acts::Bytes`] the
    /// upper ones are zero, or the group's scale is no number, and need not be multiplied.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for bytes"))]
    Planes,
}

/// Quantized rows.
///
/// A group of activations is `scale · code` with `scale = max |x| / 32639`, or `max |x| / 127` of [`Acts::Bytes`], and
/// codes rounded to the nearest whole number, ties to even. A group of magnitudes below what f32 has full precision
/// for counts as zero; a group with a value that is not finite gets a scale that is not a number, so that what is
/// computed with it is none either.
///
/// Beside 4-bit weights, the codes of every 32 inputs come in another order: the 16 even ones, then
/// the 16 odd ones, which is how half bytes come apart. [`Layout::Lanes`] has an order of its own.
pub(crate) struct Activations {
    /// `[rows, inputs]` of [`Layout::Words`]; rows of [`Layout::Lanes`] as numbers of 16 bits, `stride` apart; else empty.
    words: Vec<i16>,
    /// Rows of the upper bytes of [`Layout::Planes`], `stride` apart, else empty.
    high: Vec<i8>,
    /// As `high`, of the lower bytes, or the only ones of [`Layout::Lanes`].
    low: Vec<i8>,
    stride: usize,
    groups: usize,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    /// The scale times the sum of the codes, `[rows, groups]`.
    sums: Vec<f32>,
}

/// One row in [`Layout::Planes`], each plane with [`PADDING`] zeros behind it; the next row follows.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for bytes"))]
pub(crate) struct Planes<'a> {
    pub(crate) high: &'a [i8],
    pub(crate) low: &'a [i8],
}

/// Most bytes that one row of so many inputs takes in any form, with groups of any size.
pub(crate) fn row_bytes(inputs: u64) -> u64 {
    // Two planes; a scale and a sum for each of the smallest groups.
    let planes = inputs.saturating_add(PADDING as u64).saturating_mul(2);
    let params = inputs.div_ceil(SHORT_GROUP as u64).saturating_mul(2 * size_of::<f32>() as u64);
    planes.saturating_add(params)
}

impl Activations {
    /// Quantizes the rows of `call` for the groups and bits of its weight.
    pub(crate) fn quantize(tier: Tier, call: &Call<'_>, layout: Layout) -> Activations {
        let (rows, inputs, groups) = (call.rows(), call.weight.inputs, call.weight.groups());
        let AffineMatrix { bits, acts, group, .. } = call.weight;
        let stride = match layout {
            Layout::Words => inputs,
            Layout::Lanes => lanes_stride(inputs),
            Layout::Planes => inputs + PADDING,
        };
        let (words, high, low) = match layout {
            Layout::Lanes if acts == Acts::Bytes => (0, 0, rows * stride),
            Layout::Words | Layout::Lanes => (rows * stride, 0, 0),
            Layout::Planes => (0, rows * stride, rows * stride),
        };
        let (mut words, mut high, mut low) =
            (UninitVec::new(words), UninitVec::new(high), UninitVec::new(low));
        let (mut scales, mut sums) = (vec![0.0; rows * groups], vec![0.0; rows * groups]);
        // The last group may be half of a piece, which leaves gaps.
        let whole = inputs - inputs % PIECE;
        let codes: Vec<Codes<'_>> = match layout {
            Layout::Words => words.uninit().chunks_exact_mut(inputs).map(Codes::Words).collect(),
            Layout::Lanes if acts == Acts::Bytes => {
                let rows = low.uninit().chunks_exact_mut(stride);
                rows.map(|row| Codes::ByteLanes { to: padded(row, whole), bits }).collect()
            }
            Layout::Lanes => {
                let rows = words.uninit().chunks_exact_mut(stride);
                rows.map(|row| Codes::Lanes { to: padded(row, whole), bits }).collect()
            }
            Layout::Planes => {
                let low = low.uninit().chunks_exact_mut(stride).map(|low| padded(low, inputs));
                let high = high.uninit().chunks_exact_mut(stride).map(|high| padded(high, inputs));
                let both = high.zip(low);
                both.map(|(high, low)| Codes::Planes { high, low }).collect()
            }
        };
        let params = scales.chunks_exact_mut(groups).zip(sums.chunks_exact_mut(groups));
        let each = codes.into_iter().zip(params).zip(call.x.chunks_exact(inputs));
        let row = |((codes, (scales, sums)), x)| Row { x, bits, acts, group, codes, scales, sums };
        let mut each: Vec<Row<'_>> = each.map(row).collect();
        // One row takes a microsecond or two: less than a task costs.
        let task_rows = if call.parallel { 4 } else { rows.max(1) };
        for_each_mut(&mut each.chunks_mut(task_rows).collect::<Vec<_>>(), |_, some| {
            for row in some.iter_mut() {
                tier.run(row);
            }
        });
        // SAFETY: each row's codes are written group by group, and its inputs are whole groups, as `check` has
        // seen; behind those of a plane or of lanes, `padded` has written the rest.
        let (words, high, low) =
            unsafe { (words.assume_init(), high.assume_init(), low.assume_init()) };
        Activations { words, high, low, stride, groups, scales, sums }
    }

    /// The bytes of the codes of one row, of [`Layout::Planes`].
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for bytes"))]
    pub(crate) fn planes(&self, row: usize) -> Planes<'_> {
        let row = row * self.stride..(row + 1) * self.stride;
        Planes { high: &self.high[row.clone()], low: &self.low[row] }
    }

    /// All codes, `[rows, inputs]`, of [`Layout::Words`].
    #[inline(always)]
    pub(crate) fn words(&self) -> &[i16] {
        &self.words
    }

    /// The bytes of the codes of the rows from `row` on, of [`Layout::Lanes`], and how many lie between one row and the next.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) fn lanes(&self, row: usize) -> (&[u8], usize) {
        let (start, width, count) = match self.words.is_empty() {
            true => (self.low.as_ptr().cast::<u8>(), 1, self.low.len()),
            false => (self.words.as_ptr().cast::<u8>(), size_of::<i16>(), self.words.len()),
        };
        // SAFETY: all numbers of a vector, which were set, read as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start, count * width) };
        (&bytes[row * self.stride * width..], self.stride * width)
    }

    /// The scales of the groups of the rows from `row` on, these times the sums of their codes, and how many lie between one
    /// row and the next.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) fn params(&self, row: usize) -> (&[f32], &[f32], usize) {
        let first = row * self.groups;
        (&self.scales[first..], &self.sums[first..], self.groups)
    }

    /// The scales of the groups of one row.
    #[inline(always)]
    pub(crate) fn scales(&self, row: usize) -> &[f32] {
        &self.scales[row * self.groups..][..self.groups]
    }

    /// The scales times the sums of the codes of the groups of one row.
    #[inline(always)]
    pub(crate) fn sums(&self, row: usize) -> &[f32] {
        &self.sums[row * self.groups..][..self.groups]
    }
}

/// Numbers from one row of [`Layout::Lanes`] to the next: whole pieces, and a line or two more, so that rows of a power of
/// two do not compete for the same places of the cache.
fn lanes_stride(inputs: usize) -> usize {
    inputs.next_multiple_of(PIECE) + PIECE
}

/// A row, set to zero from `from` on.
fn padded<T: Number + Default>(row: &mut Uninit<T>, from: usize) -> &mut Uninit<T> {
    row[from..].fill(MaybeUninit::new(T::default()));
    row
}

/// Where the codes of a row go.
enum Codes<'a> {
    Words(&'a mut Uninit<i16>),
    Lanes { to: &'a mut Uninit<i16>, bits: Bits },
    ByteLanes { to: &'a mut Uninit<i8>, bits: Bits },
    Planes { high: &'a mut Uninit<i8>, low: &'a mut Uninit<i8> },
}

impl Codes<'_> {
    /// Writes the codes of group `group`.
    #[inline(always)]
    fn store<const GROUP: usize>(&mut self, group: usize, shifted: &[f32; GROUP]) {
        match self {
            Codes::Words(to) => {
                let to = &mut to.as_chunks_mut::<GROUP>().0[group];
                for i in 0..GROUP {
                    to[i].write(code(shifted[i]) as i16);
                }
            }
            Codes::Planes { high, low } => {
                let high = &mut high.as_chunks_mut().0[group];
                split(shifted, high, &mut low.as_chunks_mut().0[group]);
            }
            Codes::Lanes { to, bits: Bits::Four } => {
                lanes::<i16, GROUP, 4>(to, group, shifted, word)
            }
            Codes::Lanes { to, .. } => lanes::<i16, GROUP, 2>(to, group, shifted, word),
            Codes::ByteLanes { to, bits: Bits::Four } => {
                lanes::<i8, GROUP, 2>(to, group, shifted, low_byte);
            }
            Codes::ByteLanes { to, .. } => lanes::<i8, GROUP, 1>(to, group, shifted, low_byte),
        }
    }
}

/// One row to quantize.
struct Row<'a> {
    x: &'a [f32],
    bits: Bits,
    acts: Acts,
    group: usize,
    codes: Codes<'a>,
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for &mut Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.group {
            SHORT_GROUP => self.quantize::<S, SHORT_GROUP>(simd),
            32 => self.quantize::<S, 32>(simd),
            64 => self.quantize::<S, 64>(simd),
            _ => self.quantize::<S, MAX_GROUP>(simd),
        }
    }
}

impl Row<'_> {
    /// `GROUP` is that of the weight.
    #[inline(always)]
    fn quantize<S: Simd, const GROUP: usize>(&mut self, simd: S) {
        let most = match self.acts {
            Acts::Words => MAX_CODE,
            Acts::Bytes => MAX_BYTE_CODE,
        };
        let is_in_order = !matches!(self.codes, Codes::Lanes { .. } | Codes::ByteLanes { .. });
        for (group, x) in self.x.as_chunks::<GROUP>().0.iter().enumerate() {
            let (scale, inverse) = scale(largest(simd, x), most);
            let mut shifted = [0.0; GROUP];
            let sum = round(simd, x, inverse, &mut shifted);
            if self.bits == Bits::Four && is_in_order {
                for block in shifted.as_chunks_mut().0 {
                    *block = evens_first(block);
                }
            }
            self.codes.store(group, &shifted);
            self.scales[group] = scale;
            self.sums[group] = scale * sum;
        }
    }
}

/// The largest magnitude of whole vectors; no number if one of them is none or is infinite.
#[inline(always)]
fn largest<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let zero = simd.splat(0.0);
    let (mut most, mut zeros) = (zero, zero);
    for x in x.as_chunks().0 {
        let x = simd.load(x);
        most = simd.max(simd.max(x, simd.sub(zero, x)), most);
        zeros = simd.mul_add(x, zero, zeros); // Stay so but for what is not finite.
    }
    let mut lanes = [0.0; LANES];
    simd.store(most, &mut lanes);
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            let (a, b) = (lanes[lane], lanes[lane + half]);
            lanes[lane] = if a > b { a } else { b };
        }
        half /= 2;
    }
    lanes[0] + simd.sum(zeros)
}

/// The scale of a group and the factor that takes activations to codes, of which `most` is the largest.
#[inline(always)]
fn scale(largest: f32, most: f32) -> (f32, f32) {
    let scale = largest / most;
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if scale < f32::MIN_POSITIVE {
        (0.0, 0.0)
    } else {
        (scale, 1.0 / scale)
    }
}

/// Rounds `x · inverse`: within the largest code for finite `x`, as that is but for two roundings. What is written
/// is the result `+` [`ROUND`], see [`code`]; what is returned is the sum, which is exact: at most 128 codes
/// below 2^15. Where `x` is not finite they are anything.
#[inline(always)]
fn round<S: Simd>(simd: S, x: &[f32], inverse: f32, shifted: &mut [f32]) -> f32 {
    let (inverse, shift) = (simd.splat(inverse), simd.splat(ROUND));
    let mut sums = simd.splat(0.0);
    for (x, to) in x.as_chunks().0.iter().zip(shifted.as_chunks_mut().0) {
        let shifted = simd.add(simd.mul(simd.load(x), inverse), shift);
        sums = simd.add(sums, simd.sub(shifted, shift));
        simd.store(shifted, to);
    }
    simd.sum(sums)
}

/// The whole number that [`ROUND`] was added to.
#[inline(always)]
fn code(shifted: f32) -> i32 {
    shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32
}

/// Writes the codes of group `group` of a row of [`Layout::Lanes`]. Its pieces are `V` vectors: input `i` of a piece goes to
/// place `i / V` of vector `i % V`. So come codes apart that lie two in a byte, or in words every other byte of a vector.
#[inline(always)]
fn lanes<T, const GROUP: usize, const V: usize>(
    row: &mut Uninit<T>,
    group: usize,
    shifted: &[f32; GROUP],
    narrowed: impl Fn(i32) -> T,
) {
    let in_vector = VECTOR_BYTES / size_of::<T>();
    let piece = V * in_vector;
    let places = piece.min(GROUP) / V; // In a vector.
    for (part, shifted) in shifted.chunks_exact(V * places).enumerate() {
        let first = group * GROUP + part * piece;
        let to = &mut row[first - first % piece..][..piece];
        for (v, to) in to.chunks_exact_mut(in_vector).enumerate() {
            let to = &mut to[first % piece / V..][..places];
            for (i, to) in to.iter_mut().enumerate() {
                to.write(narrowed(code(shifted[V * i + v])));
            }
        }
    }
}

/// The signed bytes of codes: `code = 256 · high + low`.
#[inline(always)]
fn split<const N: usize>(
    shifted: &[f32; N],
    high: &mut [MaybeUninit<i8>; N],
    low: &mut [MaybeUninit<i8>; N],
) {
    for i in 0..N {
        let code = code(shifted[i]);
        low[i].write(low_byte(code));
        high[i].write(high_byte(code));
    }
}

/// A code as one number.
#[inline(always)]
fn word(code: i32) -> i16 {
    code as i16
}

/// The lower of them.
#[inline(always)]
fn low_byte(code: i32) -> i8 {
    code as i8
}

/// The upper one.
#[inline(always)]
fn high_byte(code: i32) -> i8 {
    ((code + 128) >> 8) as i8
}

#[inline(always)]
fn evens_first(x: &[f32; ORDER]) -> [f32; ORDER] {
    let mut ordered = [0.0; ORDER];
    for i in 0..ORDER / 2 {
        ordered[i] = x[2 * i];
        ordered[ORDER / 2 + i] = x[2 * i + 1];
    }
    ordered
}
