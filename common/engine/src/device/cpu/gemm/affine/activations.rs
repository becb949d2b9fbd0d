//! Activations quantized to codes of 16 bits, or of 8, each group of inputs with a scale of its own.

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
/// The same of [`Acts::Bytes`]. The squared rounding error is a few hundredths of that of the weights, which were
/// quantized to far fewer steps, and instructions that multiply bytes do so twice as fast.
const MAX_BYTE_CODE: f32 = 127.0;
const _: () = assert!(MAX_BYTE_CODE <= 127.0, "codes of one signed byte");
/// Codes of a piece of [`Layout::Lanes`] at most, see [`lanes`]: whole rows of them are whole pieces of all kinds.
const PIECE: usize = 64;
/// Words of 32 bits in a vector of [`Layout::Lanes`].
const IN_VECTOR: usize = 8;
/// Bytes between rows of a plane beyond their codes: vectors may reach past the end of a row, and
/// rows of a power of two do not compete for the same places of the cache.
const PADDING: usize = 128;

/// How a kernel reads codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// As numbers of 16 bits.
    Words,
    /// In the order in which vectors of weights are unpacked, see [`lanes`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    Lanes,
    /// As [`Layout::Lanes`], of the rows of a register tile: 4 bytes of each of them in turn, as they are multiplied
    /// with the same weights. Of so many rows at most; tiles are as few as can be, and alike but for the last: two of
    /// eight rows take less than one of twelve and one of four.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    Tiles(usize),
    /// As two bytes, `code = 256 · high + low`, both signed: for instructions that multiply bytes. Of [`Acts::Bytes`]
    /// the upper ones are zero, or the group's scale is no number, and need not be multiplied.
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
/// the 16 odd ones, which is how half bytes are unpacked. [`Layout::Lanes`] has an order of its own.
pub(crate) struct Activations {
    /// `[rows, inputs]` of [`Layout::Words`], else empty.
    words: Vec<i16>,
    /// Rows of [`Layout::Lanes`], `stride` apart, or [`Layout::Tiles`] of as many numbers, else empty: each some codes
    /// that are multiplied at once, the first of them lowest.
    lanes: Vec<u32>,
    /// Rows of the upper bytes of [`Layout::Planes`], `stride` apart, else empty.
    high: Vec<i8>,
    /// As `high`, of the lower bytes.
    low: Vec<i8>,
    stride: usize,
    groups: usize,
    /// Rows of a tile of [`Layout::Tiles`], the last of which may have fewer; else 1.
    tile: usize,
    /// `[rows, groups]`; of tiles, one behind the other, `[groups, rows]`.
    scales: Vec<f32>,
    /// The scale times the sum of the codes, as `scales`.
    sums: Vec<f32>,
}

/// Some rows of [`Layout::Tiles`].
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
pub(crate) struct Tile<'a> {
    /// Four bytes of each row in turn.
    pub(crate) codes: &'a [u8],
    /// `[groups, rows]`.
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [f32],
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
        let turn = match acts {
            Acts::Words => 2,
            Acts::Bytes => 4,
        };
        let stride = match layout {
            Layout::Words => inputs,
            Layout::Lanes | Layout::Tiles(_) => lanes_stride(inputs) / turn,
            Layout::Planes => inputs + PADDING,
        };
        let (words, lanes, planes) = match layout {
            Layout::Words => (rows * stride, 0, 0),
            Layout::Lanes | Layout::Tiles(_) => (0, rows * stride, 0),
            Layout::Planes => (0, 0, rows * stride),
        };
        let (mut words, mut lanes) = (UninitVec::new(words), UninitVec::new(lanes));
        let (mut high, mut low) = (UninitVec::new(planes), UninitVec::new(planes));
        let (mut scales, mut sums) = (vec![0.0; rows * groups], vec![0.0; rows * groups]);
        let tile = match layout {
            Layout::Tiles(most) => tile_rows(rows, most),
            _ => 1,
        };
        let codes: Vec<Codes<'_>> = match layout {
            Layout::Words => words.uninit().chunks_exact_mut(inputs).map(Codes::Words).collect(),
            Layout::Lanes | Layout::Tiles(_) => {
                // The last group may be half of a piece, which leaves gaps.
                let whole = (inputs - inputs % PIECE) / turn;
                let tiles = padded(lanes.uninit(), tile, stride, whole);
                tiles.map(|to| Codes::Lanes { to, bits, acts }).collect()
            }
            Layout::Planes => {
                let high = padded(high.uninit(), 1, stride, inputs);
                let both = high.zip(padded(low.uninit(), 1, stride, inputs));
                both.map(|(high, low)| Codes::Planes { high, low }).collect()
            }
        };
        let params = scales.chunks_mut(tile * groups).zip(sums.chunks_mut(tile * groups));
        let each = codes.into_iter().zip(params).zip(call.x.chunks(tile * inputs));
        let rows_of = |((codes, (scales, sums)), x)| Rows {
            x,
            inputs,
            bits,
            acts,
            group,
            codes,
            scales,
            sums,
        };
        let mut each: Vec<Rows<'_>> = each.map(rows_of).collect();
        // One row takes a microsecond or two: less than a task costs.
        let task_rows = if call.parallel { 4 } else { rows.max(1) };
        let tasks = each.chunks_mut(task_rows.div_ceil(tile));
        for_each_mut(&mut tasks.collect::<Vec<_>>(), |_, some| {
            for rows in some.iter_mut() {
                tier.run(rows);
            }
        });
        // SAFETY: each row's codes are written group by group, and its inputs are whole groups, as `check` has
        // seen; behind those of a plane or of lanes, `padded` has written the rest.
        let (words, lanes, high, low) = unsafe {
            (words.assume_init(), lanes.assume_init(), high.assume_init(), low.assume_init())
        };
        Activations { words, lanes, high, low, stride, groups, tile, scales, sums }
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

    /// The bytes of the codes of the rows from `row` on, of [`Layout::Lanes`], and how many lie between one row and the
    /// next.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) fn lanes(&self, row: usize) -> (&[u8], usize) {
        debug_assert_eq!(self.tile, 1, "rows one behind the other");
        self.bytes_from(row)
    }

    /// The tile that begins with `row`, of [`Layout::Tiles`], and how many rows it has.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    pub(crate) fn tile(&self, row: usize) -> (Tile<'_>, usize) {
        assert!(row.is_multiple_of(self.tile), "{row} begins no tile of {}", self.tile);
        let (codes, row_bytes) = self.bytes_from(row);
        let rows = self.tile.min(codes.len() / row_bytes);
        let params = row * self.groups..(row + rows) * self.groups;
        let (scales, sums) = (&self.scales[params.clone()], &self.sums[params]);
        (Tile { codes: &codes[..rows * row_bytes], scales, sums }, rows)
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no kernel for them"))]
    fn bytes_from(&self, row: usize) -> (&[u8], usize) {
        let (start, bytes) = (self.lanes.as_ptr(), size_of_val(&*self.lanes));
        // SAFETY: all numbers of a vector, which were set, read as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), bytes) };
        let row_bytes = self.stride * size_of::<u32>();
        (&bytes[row * row_bytes..], row_bytes)
    }

    /// The scales of the groups of one row.
    #[inline(always)]
    pub(crate) fn scales(&self, row: usize) -> &[f32] {
        debug_assert_eq!(self.tile, 1, "rows one behind the other");
        &self.scales[row * self.groups..][..self.groups]
    }

    /// The scales times the sums of the codes of the groups of one row.
    #[inline(always)]
    pub(crate) fn sums(&self, row: usize) -> &[f32] {
        debug_assert_eq!(self.tile, 1, "rows one behind the other");
        &self.sums[row * self.groups..][..self.groups]
    }
}

/// Rows of a tile, of which there are as few as can be, and all but the last the same.
pub(crate) fn tile_rows(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// Numbers from one row of [`Layout::Lanes`] to the next: whole pieces, and a line or two more, so that rows of a power
/// of two do not compete for the same places of the cache.
fn lanes_stride(inputs: usize) -> usize {
    inputs.next_multiple_of(PIECE) + PIECE
}

/// Tiles of so many rows of `stride` numbers, of which what is behind the codes of all is set to zero.
fn padded<T: Number + Default>(
    numbers: &mut Uninit<T>,
    rows: usize,
    stride: usize,
    codes: usize,
) -> impl Iterator<Item = &mut Uninit<T>> {
    for tile in numbers.chunks_mut(rows * stride) {
        let end = tile.len() / stride * codes;
        tile[end..].fill(MaybeUninit::new(T::default()));
    }
    numbers.chunks_mut(rows * stride)
}

/// Where codes go: those of one row, or in lanes of a tile of some.
enum Codes<'a> {
    Words(&'a mut Uninit<i16>),
    Lanes { to: &'a mut Uninit<u32>, bits: Bits, acts: Acts },
    Planes { high: &'a mut Uninit<i8>, low: &'a mut Uninit<i8> },
}

impl Codes<'_> {
    /// Writes the codes of group `group` of row `at` of so many.
    #[inline(always)]
    fn store<const GROUP: usize>(
        &mut self,
        (at, rows): (usize, usize),
        group: usize,
        shifted: &[f32; GROUP],
    ) {
        let tile = (at, rows);
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
            Codes::Lanes { to, bits, acts } => match (bits, acts) {
                (Bits::Four, Acts::Words) => lanes::<2, GROUP, 4>(to, tile, group, shifted),
                (_, Acts::Words) => lanes::<2, GROUP, 2>(to, tile, group, shifted),
                (Bits::Four, Acts::Bytes) => lanes::<4, GROUP, 2>(to, tile, group, shifted),
                (_, Acts::Bytes) => lanes::<4, GROUP, 1>(to, tile, group, shifted),
            },
        }
    }
}

/// Rows to quantize: one, or those of a tile.
struct Rows<'a> {
    x: &'a [f32],
    inputs: usize,
    bits: Bits,
    acts: Acts,
    group: usize,
    codes: Codes<'a>,
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for &mut Rows<'_> {
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

impl Rows<'_> {
    /// `GROUP` is that of the weight.
    #[inline(always)]
    fn quantize<S: Simd, const GROUP: usize>(&mut self, simd: S) {
        let most = match self.acts {
            Acts::Words => MAX_CODE,
            Acts::Bytes => MAX_BYTE_CODE,
        };
        let is_in_order = !matches!(self.codes, Codes::Lanes { .. });
        let rows = self.x.len() / self.inputs;
        for (at, x) in self.x.chunks_exact(self.inputs).enumerate() {
            for (group, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                let (scale, inverse) = scale(largest(simd, x), most);
                let mut shifted = [0.0; GROUP];
                let sum = round(simd, x, inverse, &mut shifted);
                if self.bits == Bits::Four && is_in_order {
                    for block in shifted.as_chunks_mut().0 {
                        *block = evens_first(block);
                    }
                }
                self.codes.store((at, rows), group, &shifted);
                self.scales[group * rows + at] = scale;
                self.sums[group * rows + at] = scale * sum;
            }
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

/// Writes the codes of group `group` of a row of [`Layout::Lanes`], or of row `at` of a tile of `rows`, `TURN` in a
/// number. Pieces are `V` vectors: input `i` of a piece goes to place `i / V` of vector `i % V`. So are codes unpacked
/// that lie two in a byte, or in words every other byte of a vector.
#[inline(always)]
fn lanes<const TURN: usize, const GROUP: usize, const V: usize>(
    to: &mut Uninit<u32>,
    (at, rows): (usize, usize),
    group: usize,
    shifted: &[f32; GROUP],
) {
    let bits = u32::BITS as usize / TURN;
    let piece = V * IN_VECTOR * TURN;
    let turns = piece.min(GROUP) / (V * TURN); // Of a vector.
    for (part, shifted) in shifted.chunks_exact(V * TURN * turns).enumerate() {
        let mut numbers = [0; MAX_GROUP / 2];
        for i in 0..TURN {
            for turn in 0..turns {
                for v in 0..V {
                    let code = code(shifted[(turn * TURN + i) * V + v]) as u32;
                    numbers[turn * V + v] |= (code & (u32::MAX >> (32 - bits))) << (bits * i);
                }
            }
        }
        let first = group * GROUP + part * piece;
        let first = (first - first % piece + first % piece / V) / TURN;
        for v in 0..V {
            for turn in 0..turns {
                to[(first + v * IN_VECTOR + turn) * rows + at].write(numbers[turn * V + v]);
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

/// The lower byte of a code.
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
