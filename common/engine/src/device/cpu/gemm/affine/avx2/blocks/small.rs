//! Blocks of 32 codes, which are a piece and share all that they have.

use std::arch::x86_64::*;

use super::super::codes::Codes;
use super::super::lanes::transposed_words;
use super::super::narrow::{TWICE_AND_12, UNEVEN_AND_128, half_powers};
use super::super::stored::{LANES, Params, WideParams, centred};
use super::block::{Block, blocks};

blocks! {
    /// A scale, then halves.
    Q4_0: 32 codes in 18 bytes, groups of 32 up to 15, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 2)],
        |blocks, _first, count| one_scale(blocks, 18, count, -8.0),
        |both, to| beginnings::<18>(both, Some(-8.0), to);
    /// A scale and a minimum, then halves.
    Q4_1: 32 codes in 20 bytes, groups of 32 up to 15, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 4)],
        |blocks, _first, count| scale_and_minimum(blocks, 20, count),
        |both, to| beginnings::<20>(both, None, to);
    /// A scale, 32 fifth bits, then halves.
    Q5_0: 32 codes in 22 bytes, groups of 32 up to 31, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 6).or_where_set(rows, block + 2, 16)],
        |blocks, _first, count| one_scale(blocks, 22, count, -16.0);
    /// A scale and a minimum, 32 fifth bits, then halves.
    Q5_1: 32 codes in 24 bytes, groups of 32 up to 31, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 8).or_where_set(rows, block + 4, 16)],
        |blocks, _first, count| scale_and_minimum(blocks, 24, count);
    /// A scale, then signed bytes: 128 more makes them unsigned.
    Q8_0: 32 codes in 34 bytes, groups of 32 up to 255, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::load(rows, block + 2).xor(0x80)],
        |blocks, _first, count| one_scale(blocks, 34, count, -128.0);
    /// A scale, then halves, which are places in a table.
    Iq4Nl: 32 codes in 18 bytes, groups of 32 up to 255, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 2).looked_up(&UNEVEN_AND_128)],
        |blocks, _first, count| one_scale(blocks, 18, count, -128.0),
        |both, to| beginnings::<18>(both, Some(-128.0), to);
    /// A scale that is a power of two, then halves, which are numbers of their own.
    Mxfp4: 32 codes in 17 bytes, groups of 32 up to 24, pieces of 1 vectors, 1 sheaves,
        |rows, block, _piece| [C::halves(rows, block + 1).looked_up(&TWICE_AND_12)],
        |blocks, _first, count| {
            per_block(count, |at| centred(half_powers(exponents(blocks, at * 17)), -12.0))
        };
}

/// Those of `count` blocks of `bytes` that begin with a scale, one after the other.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn one_scale(
    blocks: &[*const u8; LANES],
    bytes: usize,
    count: usize,
    centre: f32,
) -> Params {
    // SAFETY: the caller's promises.
    unsafe { per_block(count, |at| centred(_mm256_cvtph_ps(pairs(blocks, at * bytes)[0]), centre)) }
}

/// Those of `count` blocks of `bytes` that begin with a scale and a minimum.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn scale_and_minimum(blocks: &[*const u8; LANES], bytes: usize, count: usize) -> Params {
    // SAFETY: the caller's promises.
    unsafe {
        per_block(count, |at| {
            let [scales, minima] = pairs(blocks, at * bytes);
            (_mm256_cvtph_ps(scales), _mm256_cvtph_ps(minima))
        })
    }
}

/// Scales and biases of `count` blocks, each of eight outputs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn per_block(count: usize, block: impl Fn(usize) -> (__m256, __m256)) -> Params {
    let zero = [_mm256_setzero_ps(); LANES];
    let mut params = Params { scales: zero, biases: zero };
    for at in 0..count.min(LANES) {
        (params.scales[at], params.biases[at]) = block(at);
    }
    params
}

/// Scales, and biases that are `centre` times these or else the numbers behind them, of eight blocks of `BYTES`, which follow
/// each other, of each of 16 outputs: those of four blocks are in one vector of bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline]
unsafe fn beginnings<const BYTES: usize>(
    [these, those]: &[[*const u8; LANES]; 2],
    centre: Option<f32>,
    to: &mut WideParams,
) {
    const { assert!(3 * BYTES + 4 <= 64 && 64 <= 4 * BYTES, "whole vectors of blocks") };
    /// Where the words are that blocks begin with, in two vectors, then those behind them.
    const fn places(bytes: usize) -> [u16; 32] {
        let mut places = [0; 32];
        let mut at = 0;
        while at < LANES {
            places[at] = (at / 4 * 32 + at % 4 * bytes / 2) as u16;
            places[LANES + at] = places[at] + 1;
            at += 1;
        }
        places
    }
    // SAFETY: a whole vector.
    let places = unsafe { _mm512_loadu_si512(const { &places(BYTES) }.as_ptr().cast()) };
    let words = |block: *const u8| {
        // SAFETY: bytes of the eight blocks that there are.
        unsafe {
            let first = _mm512_loadu_si512(block.cast());
            let last = _mm512_loadu_si512(block.wrapping_add(4 * BYTES).cast());
            _mm512_castsi512_si256(_mm512_permutex2var_epi16(first, places, last))
        }
    };
    let zero = [_mm256_setzero_si256(); LANES];
    let (mut scales, mut behind) = (zero, zero);
    for lane in 0..LANES {
        let (first, last) = (words(these[lane]), words(those[lane]));
        scales[lane] = _mm256_permute2x128_si256::<0x20>(first, last);
        behind[lane] = _mm256_permute2x128_si256::<0x31>(first, last);
    }
    let scales = transposed_words(scales);
    let biases = if centre.is_none() { transposed_words(behind) } else { zero };
    for group in 0..LANES {
        let scale = _mm512_cvtph_ps(scales[group]);
        let bias = match centre {
            Some(centre) => _mm512_mul_ps(_mm512_set1_ps(centre), scale),
            None => _mm512_cvtph_ps(biases[group]),
        };
        to.scales[group].write(_mm512_castps_si512(scale));
        to.biases[group].write(_mm512_castps_si512(bias));
    }
}

/// The two numbers of 16 bits `at` bytes behind the beginnings of eight outputs' blocks.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn pairs(blocks: &[*const u8; LANES], at: usize) -> [__m128i; 2] {
    // SAFETY: the caller's promises; there are codes behind them.
    unsafe {
        let pair =
            |lane: usize| _mm_cvtsi32_si128(blocks[lane].add(at).cast::<i32>().read_unaligned());
        let [a, b] = [_mm_unpacklo_epi16(pair(0), pair(1)), _mm_unpacklo_epi16(pair(2), pair(3))];
        let [c, d] = [_mm_unpacklo_epi16(pair(4), pair(5)), _mm_unpacklo_epi16(pair(6), pair(7))];
        let [first, last] = [_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d)];
        [_mm_unpacklo_epi64(first, last), _mm_unpackhi_epi64(first, last)]
    }
}

/// The bytes `at` bytes behind the beginnings of eight outputs' blocks, as numbers.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn exponents(blocks: &[*const u8; LANES], at: usize) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe {
        let byte = |lane: usize| blocks[lane].add(at).cast::<i8>().read();
        let [a, b, c, d] = [byte(0), byte(1), byte(2), byte(3)];
        let [e, f, g, h] = [byte(4), byte(5), byte(6), byte(7)];
        _mm256_cvtepu8_epi32(_mm_setr_epi8(a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0))
    }
}
