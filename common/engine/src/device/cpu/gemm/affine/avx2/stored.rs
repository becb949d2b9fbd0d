//! How the weights of an encoding are unpacked into registers.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codes::{Codes, joined};
use crate::device::cpu::isa::prefetch::{CACHE_LINE, prefetch};
use crate::device::cpu::isa::x86::{Line, transposed8};

/// Lanes of a vector: outputs that are computed together, and groups whose scales are transposed at once.
pub(super) const LANES: usize = 8;
/// Bytes of a vector.
pub(super) const VECTOR_BYTES: usize = 32;
/// Largest magnitude of the code of an activation that is a byte.
const LARGEST_BYTE: usize = 127;

/// Rows up to which transposing accumulators costs less than transposing weights, at most.
pub(super) const DIRECT_ROWS: usize = 4;

/// The weights of a matrix, `[outputs, inputs]`, as whole groups of codes with a scale and a bias, in pieces of `V`
/// vectors: `N` sheaves, each of vectors whose products are added up. Codes are bytes, and in the order of inputs, or
/// of a sheaf the [even ones first](Self::EVENS_FIRST). Beside words of activations they become words, of which the
/// even ones come first: that is the order of [`Layout::Lanes`](super::super::activations::Layout).
///
/// # Safety
/// Whoever implements it promises that the methods read no other memory than the matrix's for the arguments that they
/// allow.
pub(super) unsafe trait Stored<const V: usize, const N: usize>:
    Copy + Send + Sync
{
    /// Where an output lies.
    type Row: Copy;
    /// Codes that share a scale and a bias.
    const GROUP: usize;
    /// The largest code, 255 at most.
    const LARGEST: usize;
    /// Bytes of a piece at most, rounded up.
    const PIECE_BYTES: usize;

    /// Whether few rows beside it are computed here where there is AVX512-VNNI: affine matrices have a kernel that is 5
    /// to 15 % faster from memory (Zen 5).
    const WIDE: bool = true;
    /// Whether the first of the two vectors of a sheaf has the even codes, the second the odd ones.
    const EVENS_FIRST: bool = false;

    /// Whether activations may be bytes, too.
    const NARROW: bool = Self::LARGEST < 64;
    /// How many products of two pairs of bytes, added up as a word, do not overflow when they are added up.
    const SUMMED: usize = i16::MAX as usize / (2 * LARGEST_BYTE * Self::LARGEST);
    /// Codes of a piece.
    const IN_PIECE: usize = V * VECTOR_BYTES;
    /// Whether the halves of the vectors of a sheaf belong to two groups; else whole sheaves make a group.
    const HALVES: bool = Self::GROUP < Self::IN_PIECE / N;
    /// Pieces of a unit, the products of which are added up first: those of a group, or the one of several.
    const PIECES: usize =
        if Self::GROUP > Self::IN_PIECE { Self::GROUP / Self::IN_PIECE } else { 1 };
    /// Groups of a unit.
    const GROUPS: usize = if Self::HALVES { 2 * N } else { N };

    /// Rows up to which transposing accumulators costs less than transposing weights, as was measured (Zen 3): beside
    /// four rows it costs more where groups are of 16, but for NVFP4's, and elsewhere the same or up to a fifth less.
    /// [`DIRECT_ROWS`] at most.
    const DIRECT_ROWS: usize = if Self::GROUP < 32 { DIRECT_ROWS - 1 } else { DIRECT_ROWS };

    /// Bytes of a piece of this matrix.
    #[inline(always)]
    fn piece_bytes(&self) -> usize {
        Self::PIECE_BYTES
    }

    /// Number of outputs.
    fn outputs(&self) -> usize;

    /// Groups of an output.
    fn groups(&self) -> usize;

    /// Where the codes begin, and bytes from one output to the next: what is prefetched.
    fn bytes(&self) -> (*const u8, usize);

    /// Where an output of the matrix lies.
    fn row(&self, output: usize) -> Self::Row;

    /// Where the codes of an output begin.
    fn codes_of(row: Self::Row) -> *const u8;

    /// The codes of a piece, from 0 to the largest; of half a piece, the last one of an output, whatever in the upper
    /// halves.
    ///
    /// # Safety
    /// There are such outputs and such a piece, and the caller is compiled for what [`Codes`] says.
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; V];

    /// Prefetches the share that some groups have of the scales and biases of `outputs` outputs from `first` on, if
    /// they lie apart from codes. There need not be such outputs.
    #[inline(always)]
    fn ask_params(&self, _first: usize, _outputs: usize, _groups: &Range<usize>) {}

    /// Scales and biases of groups, at most [`LANES`], of as many outputs: `count` from `first` on, a multiple
    /// of [`LANES`] where a block of codes has several groups.
    ///
    /// # Safety
    /// There are such outputs and such groups, and the caller is compiled for AVX2, FMA and F16C.
    unsafe fn params(&self, rows: &[Self::Row; LANES], first: usize, count: usize) -> Params;

    /// The same of twice as many outputs.
    ///
    /// # Safety
    /// As [`Stored::params`], and the caller is compiled for AVX-512 with BW, DQ and VL, too.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    #[inline]
    unsafe fn wide_params(
        &self,
        [these, those]: &[[Self::Row; LANES]; 2],
        first: usize,
        count: usize,
        to: &mut WideParams,
    ) {
        // SAFETY: the caller's promises.
        let (these, those) =
            unsafe { (self.params(these, first, count), self.params(those, first, count)) };
        to.join(&these, &those);
    }
}

/// Scales and biases of [`LANES`] groups, each a vector of 16 outputs.
pub(super) struct WideParams {
    pub(super) scales: [Line; LANES],
    pub(super) biases: [Line; LANES],
}

impl WideParams {
    pub(super) const ZERO: WideParams =
        WideParams { scales: [Line::ZERO; LANES], biases: [Line::ZERO; LANES] };

    /// Joins those of eight outputs and of eight others.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[inline]
    pub(super) fn join(&mut self, first: &Params, last: &Params) {
        for group in 0..LANES {
            let scales = joined(first.scales[group], last.scales[group]);
            let biases = joined(first.biases[group], last.biases[group]);
            self.scales[group].write(_mm512_castps_si512(scales));
            self.biases[group].write(_mm512_castps_si512(biases));
        }
    }
}

/// Scales and biases of [`LANES`] groups of as many outputs: a vector of outputs for each group, of no meaning where
/// there is none.
#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) scales: [__m256; LANES],
    pub(super) biases: [__m256; LANES],
}

impl Params {
    /// Scales and biases from vectors of groups, one of each for every output.
    ///
    /// # Safety
    /// The caller is compiled for AVX2, FMA and F16C.
    #[inline(always)]
    pub(super) unsafe fn of_outputs(mut output: impl FnMut(usize) -> (__m256, __m256)) -> Params {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = [_mm256_setzero_ps(); LANES];
            let (mut scales, mut biases) = (zero, zero);
            for lane in 0..LANES {
                (scales[lane], biases[lane]) = output(lane);
            }
            Params { scales: transposed8(scales), biases: transposed8(biases) }
        }
    }

    /// Adds the integer dot products `dot` of group `group` of those here, scaled, to the accumulator `y`; beside them
    /// are the scale of the activations and that scale times the sum of their codes.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    pub(super) fn chain(
        &self,
        group: usize,
        (scale, sum): (__m256, __m256),
        dot: __m256i,
        y: __m256,
    ) -> __m256 {
        let scale = _mm256_mul_ps(self.scales[group], scale);
        let y = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), y);
        _mm256_fmadd_ps(self.biases[group], sum, y)
    }
}

/// Scales, and each of them times `centre`: codes that are this much less.
#[inline(always)]
pub(super) unsafe fn centred(scales: __m256, centre: f32) -> (__m256, __m256) {
    // SAFETY: the caller is compiled for AVX2.
    unsafe { (scales, _mm256_mul_ps(_mm256_set1_ps(centre), scales)) }
}

/// Prefetches what `groups` have of a part: from byte `start` on every group has `bytes` for all outputs together. In
/// lines as they lie.
#[inline(always)]
pub(super) fn ask(part: *const u8, start: usize, groups: &Range<usize>, bytes: usize) {
    let lines = groups.start * bytes / CACHE_LINE..(groups.end * bytes).div_ceil(CACHE_LINE);
    for line in lines {
        prefetch(part.wrapping_add(start + line * CACHE_LINE));
    }
}

/// A way to multiply: with activations that are words,
pub(super) const WORDS: u8 = 0;
/// and with activations that are bytes.
pub(super) const BYTES: u8 = 1;

/// Codes of a lane of 32 bits.
pub(super) const fn in_lane(way: u8) -> usize {
    if way == BYTES { 4 } else { 2 }
}
