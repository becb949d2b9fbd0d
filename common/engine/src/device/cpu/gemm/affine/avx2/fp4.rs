//! FP4 weights (E2M1), two in a byte, the even ones in the lower halves, with scales of a byte apart from them.
//!
//! A code is twice the number and 12 more, a scale half of what the byte says: what the checkpoint's codec unpacks to,
//! to the bit.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codes::{Codes, nibbles};
use super::narrow::{TWICE_AND_12, e4m3, half_e8m0};
use super::stored::{DIRECT_ROWS, LANES, Params, Stored, VECTOR_BYTES, ask, centred};
use crate::device::cpu::gemm::weight::Global;

/// A matrix of such numbers.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    outputs: usize,
    /// Bytes of the codes of an output,
    row_bytes: usize,
    /// and of its scales.
    groups: usize,
}

impl<'a> Numbers<'a> {
    /// `outputs` of `inputs` each, of which `group` share a scale.
    ///
    /// # Panics
    /// If the parts are not so many.
    pub(super) fn new(
        [codes, scales]: [&'a [u8]; 2],
        [outputs, inputs]: [usize; 2],
        group: usize,
    ) -> Numbers<'a> {
        assert!(inputs > 0 && inputs.is_multiple_of(group), "whole groups");
        let (row_bytes, groups) = (inputs / 2, inputs / group);
        assert_eq!(codes.len(), outputs * row_bytes, "whole outputs");
        assert_eq!(scales.len(), outputs * groups, "a scale a group");
        Numbers { codes, scales, outputs, row_bytes, groups }
    }
}

/// MXFP4: 32 to a scale that is a power of two (E8M0).
#[derive(Clone, Copy)]
pub(super) struct Mx<'a>(Numbers<'a>);

/// NVFP4: 16 to a scale that is an E4M3, which is divided by a number, or multiplied with one, if there is one.
#[derive(Clone, Copy)]
pub(super) struct Nv<'a>(Numbers<'a>, Option<Global>);

impl<'a> Mx<'a> {
    /// As [`Numbers::new`].
    pub(super) fn new(parts: [&'a [u8]; 2], shape: [usize; 2]) -> Mx<'a> {
        Mx(Numbers::new(parts, shape, Self::GROUP))
    }
}

impl<'a> Nv<'a> {
    /// As [`Numbers::new`].
    pub(super) fn new(parts: [&'a [u8]; 2], shape: [usize; 2], global: Option<Global>) -> Nv<'a> {
        Nv(Numbers::new(parts, shape, Self::GROUP), global)
    }
}

/// Where the codes and the scales of an output begin.
#[derive(Clone, Copy)]
pub(super) struct Row {
    codes: *const u8,
    scales: *const u8,
}

/// What is the same of both, but for the width of a group and the bytes of a piece.
macro_rules! shared {
    ($group:literal, $piece_bytes:expr) => {
        type Row = Row;
        const GROUP: usize = $group;
        const LARGEST: usize = 24;
        const PIECE_BYTES: usize = $piece_bytes;

        fn outputs(&self) -> usize {
            self.0.outputs
        }

        fn groups(&self) -> usize {
            self.0.groups
        }

        fn bytes(&self) -> (*const u8, usize) {
            (self.0.codes.as_ptr(), self.0.row_bytes)
        }

        #[inline(always)]
        fn row(&self, output: usize) -> Row {
            Row {
                codes: self.0.codes.as_ptr().wrapping_add(output * self.0.row_bytes),
                scales: self.0.scales.as_ptr().wrapping_add(output * self.0.groups),
            }
        }

        #[inline(always)]
        fn ask_params(&self, first: usize, outputs: usize, groups: &Range<usize>) {
            ask(self.0.scales.as_ptr(), first * self.0.groups, groups, outputs);
        }

        #[inline(always)]
        fn codes_of(row: Row) -> *const u8 {
            row.codes
        }
    };
}

// SAFETY: what is read are whole pieces of a row, the half of one, or scales of it that there are.
unsafe impl Stored<2, 1> for Mx<'_> {
    shared!(32, VECTOR_BYTES);
    const EVENS_FIRST: bool = true;

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 2] {
        let at = piece * Self::PIECE_BYTES;
        // SAFETY: the caller's promises.
        unsafe {
            let [lower, upper] = nibbles(match at + Self::PIECE_BYTES > self.0.row_bytes {
                true => C::half(rows, at),
                false => C::load(rows, at),
            });
            [lower.looked_up(&TWICE_AND_12), upper.looked_up(&TWICE_AND_12)]
        }
    }

    #[inline(always)]
    unsafe fn params(&self, rows: &[Row; LANES], first: usize, count: usize) -> Params {
        // SAFETY: the caller's promises.
        unsafe { mx_params(rows, first, count) }
    }
}

// SAFETY: as above.
unsafe impl Stored<1, 1> for Nv<'_> {
    shared!(16, VECTOR_BYTES / 2);
    const DIRECT_ROWS: usize = DIRECT_ROWS;

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 1] {
        let at = piece * Self::PIECE_BYTES;
        // SAFETY: the caller's promises.
        unsafe {
            // A byte as a word: its lower half at the even place, its upper half at the odd one.
            let words = C::words(rows, at, at + Self::PIECE_BYTES > self.0.row_bytes);
            [words.or(words.left::<4>()).and(15).looked_up(&TWICE_AND_12)]
        }
    }

    #[inline(always)]
    unsafe fn params(&self, rows: &[Row; LANES], first: usize, count: usize) -> Params {
        // SAFETY: the caller's promises.
        unsafe { nv_params(rows, first, count, self.1) }
    }
}

/// Those of [`Mx`].
///
/// # Safety
/// As [`Stored::params`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn mx_params(rows: &[Row; LANES], first: usize, count: usize) -> Params {
    // SAFETY: the caller's promises.
    unsafe { params(rows, first, count, |bytes| half_e8m0(bytes)) }
}

/// Those of [`Nv`].
///
/// # Safety
/// As [`Stored::params`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn nv_params(
    rows: &[Row; LANES],
    first: usize,
    count: usize,
    global: Option<Global>,
) -> Params {
    let half = _mm256_set1_ps(0.5);
    // SAFETY: the caller's promises.
    unsafe {
        match global {
            None => params(rows, first, count, |bytes| _mm256_mul_ps(half, e4m3(bytes))),
            Some(Global::Divides(global)) => params(rows, first, count, |bytes| {
                _mm256_mul_ps(half, _mm256_div_ps(e4m3(bytes), _mm256_set1_ps(global)))
            }),
            Some(Global::Multiplies(global)) => params(rows, first, count, |bytes| {
                _mm256_mul_ps(half, _mm256_mul_ps(e4m3(bytes), _mm256_set1_ps(global)))
            }),
        }
    }
}

/// Scales and biases of some groups of eight outputs; `scale` makes scales of the lower eight bytes that it is given.
///
/// # Safety
/// As [`Stored::params`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn params(
    rows: &[Row; LANES],
    first: usize,
    count: usize,
    scale: impl Fn(__m128i) -> __m256,
) -> Params {
    let mut bytes = [_mm_setzero_si128(); LANES];
    for (to, row) in bytes.iter_mut().zip(rows) {
        let from = row.scales.wrapping_add(first);
        if count < LANES {
            let mut copy = [0u8; LANES];
            // SAFETY: so many are there, by the caller's promise.
            copy[..count].copy_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
            *to = _mm_cvtsi64_si128(i64::from_le_bytes(copy));
        } else {
            // SAFETY: eight are there, by the caller's promise.
            *to = unsafe { _mm_loadl_epi64(from.cast()) };
        }
    }
    let zero = [_mm256_setzero_ps(); LANES];
    let mut params = Params { scales: zero, biases: zero };
    for (group, bytes) in transposed_bytes(bytes).into_iter().enumerate() {
        // SAFETY: this function has the instructions.
        (params.scales[group], params.biases[group]) = unsafe { centred(scale(bytes), -12.0) };
    }
    params
}

/// Bytes `i` of all rows, as the lower ones of vector `i`.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed_bytes(rows: [__m128i; LANES]) -> [__m128i; LANES] {
    let [a, b, c, d, e, f, g, h] = rows;
    let [ab, cd] = [_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)];
    let [ef, gh] = [_mm_unpacklo_epi8(e, f), _mm_unpacklo_epi8(g, h)];
    let [low, more_low] = [_mm_unpacklo_epi16(ab, cd), _mm_unpacklo_epi16(ef, gh)];
    let [high, more_high] = [_mm_unpackhi_epi16(ab, cd), _mm_unpackhi_epi16(ef, gh)];
    // Two columns each.
    let first = _mm_unpacklo_epi32(low, more_low);
    let second = _mm_unpackhi_epi32(low, more_low);
    let third = _mm_unpacklo_epi32(high, more_high);
    let fourth = _mm_unpackhi_epi32(high, more_high);
    let upper = |both| _mm_unpackhi_epi64(both, both);
    [first, upper(first), second, upper(second), third, upper(third), fourth, upper(fourth)]
}
