//! Blocks of 256 codes, of which each 32 or 16 have a scale of their own.

use std::arch::x86_64::*;

use super::super::codes::{Codes, nibbles};
use super::super::narrow::UNEVEN_AND_128;
use super::super::stored::{LANES, Params, centred};
use super::bits::scales;
use super::block::{Block, blocks};

blocks! {
    /// 16 bytes, each the step and the minimum of a group, 64 of pairs of bits, then a scale of steps and one of minima. Half
    /// of a block has 32 bytes of pairs, of which piece `i` of it has pair `i`.
    Q2K: 256 codes in 84 bytes, groups of 16 up to 3, pieces of 1 vectors, 1 sheaves,
        |rows, block, piece| [pairs::<C>(rows, block + 16, piece)],
        |blocks, first, _count| {
            let (d, dmin) = (scales(blocks, 80), scales(blocks, 82));
            let minus = _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0));
            let both = two_words(blocks, first);
            let (low, high) = (|both| and(both, 0x0f0f_0f0f), _mm256_srli_epi32::<4>);
            let steps = [low(both[0]), low(both[1])];
            let minima = [low(high(both[0])), low(high(both[1]))];
            per_group(|group| {
                let (step, min) = (unsigned(steps, group), unsigned(minima, group));
                (_mm256_mul_ps(d, step), _mm256_mul_ps(minus, min))
            })
        };
    /// 32 bytes with third bits, of which bit `i` is that of piece `i`, 64 of pairs of bits as [`Q2K`] has them, 12 of steps
    /// and a scale of these.
    Q3K: 256 codes in 110 bytes, groups of 16 up to 7, pieces of 1 vectors, 1 sheaves,
        |rows, block, piece| {
            let third = C::load(rows, block).right_by(piece).and(1).left::<2>();
            [pairs::<C>(rows, block + 32, piece).or(third)]
        },
        |blocks, first, _count| {
            // Four bytes before the steps, since there are not so many behind them.
            let [_, low, more_low, top] = words(blocks, 92);
            let half = _mm_cvtsi32_si128(first as i32 / 8 * 4);
            let top = _mm256_srl_epi32(top, half);
            let step = |low: __m256i, top: __m256i| {
                let low = and(_mm256_srl_epi32(low, half), 0x0f0f_0f0f);
                let six = _mm256_or_si256(low, _mm256_slli_epi32::<4>(and(top, 0x0303_0303)));
                _mm256_sub_epi8(six, _mm256_set1_epi8(32))
            };
            let steps = [step(low, top), step(more_low, _mm256_srli_epi32::<2>(top))];
            let d = scales(blocks, 108);
            per_group(|group| centred(_mm256_mul_ps(d, signed(steps, group)), -4.0))
        };
    /// A scale of scales and one of minima, 12 bytes of both, then halves: of 32 bytes the lower ones, then the upper ones.
    Q4K: 256 codes in 144 bytes, groups of 32 up to 15, pieces of 2 vectors, 2 sheaves,
        |rows, block, piece| nibbles(C::load(rows, block + 16 + 32 * piece)),
        |blocks, _first, _count| scales_and_minima(blocks);
    /// As [`Q4K`], and before the halves 32 bytes with fifth bits: bit `i` is that of group `i`.
    Q5K: 256 codes in 176 bytes, groups of 32 up to 31, pieces of 2 vectors, 2 sheaves,
        |rows, block, piece| {
            let fifths = C::load(rows, block + 16).right_by(2 * piece);
            let [lower, upper] = nibbles(C::load(rows, block + 48 + 32 * piece));
            [lower.or(fifths.left::<4>().and(16)), upper.or(fifths.left::<3>().and(16))]
        },
        |blocks, _first, _count| scales_and_minima(blocks);
    /// 128 bytes of halves, 64 of pairs of bits above them, 16 scales and a scale of these. Half of a block has 64 bytes of
    /// halves, whose lower ones come first, and 32 of pairs, of which 32 codes after the other have one.
    Q6K: 256 codes in 210 bytes, groups of 16 up to 63, pieces of 4 vectors, 4 sheaves,
        |rows, block, piece| {
            let [a, c] = nibbles(C::load(rows, block + 64 * piece));
            let [b, d] = nibbles(C::load(rows, block + 64 * piece + 32));
            let pairs = C::load(rows, block + 128 + 32 * piece);
            [
                a.or(pairs.left::<4>().and(0x30)),
                b.or(pairs.left::<2>().and(0x30)),
                c.or(pairs.and(0x30)),
                d.or(pairs.right::<2>().and(0x30)),
            ]
        },
        |blocks, first, _count| {
            let (d, steps) = (scales(blocks, 208), two_words(blocks, 192 + first));
            per_group(|group| centred(_mm256_mul_ps(d, signed(steps, group)), -32.0))
        };
    /// A scale, 2 bytes with the upper pairs of bits of eight steps, 4 with the lower halves, then for each group 16 bytes of
    /// halves, which are places in a table.
    Iq4Xs: 256 codes in 136 bytes, groups of 32 up to 255, pieces of 1 vectors, 1 sheaves,
        |rows, block, piece| [C::halves(rows, block + 8 + 16 * piece).looked_up(&UNEVEN_AND_128)],
        |blocks, _first, _count| {
            let (d, [top, low]) = (scales(blocks, 0), two_words(blocks, 0));
            per_group(|group| {
                let by = |bits: usize| _mm_cvtsi32_si128(bits as i32);
                let low = and(_mm256_srl_epi32(low, by(4 * group)), 15);
                // The pairs begin at bit 16, and belong above the halves.
                let top = and(_mm256_srl_epi32(top, by(12 + 2 * group)), 0x30);
                let step = _mm256_sub_epi32(_mm256_or_si256(low, top), _mm256_set1_epi32(32));
                centred(_mm256_mul_ps(d, _mm256_cvtepi32_ps(step)), -128.0)
            })
        };
}

/// Scales and biases of eight groups, each of eight outputs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn per_group(group: impl Fn(usize) -> (__m256, __m256)) -> Params {
    let zero = [_mm256_setzero_ps(); LANES];
    let mut params = Params { scales: zero, biases: zero };
    for at in 0..LANES {
        (params.scales[at], params.biases[at]) = group(at);
    }
    params
}

/// Pairs of bits of 32 bytes of every four pieces: the lowest ones of the first piece.
#[inline(always)]
unsafe fn pairs<C: Codes>(rows: C::Rows, at: usize, piece: usize) -> C {
    // SAFETY: the caller's promises.
    unsafe { C::load(rows, at + piece / 4 * 32).right_by(2 * (piece % 4)).and(3) }
}

/// Some bits of eight words.
#[target_feature(enable = "avx2")]
#[inline]
fn and(words: __m256i, bits: i32) -> __m256i {
    _mm256_and_si256(words, _mm256_set1_epi32(bits))
}

/// Byte `group` of eight, which are two words of each output, as a number.
#[target_feature(enable = "avx2")]
#[inline]
fn unsigned(words: [__m256i; 2], group: usize) -> __m256 {
    let bits = _mm_cvtsi32_si128(8 * (group % 4) as i32);
    _mm256_cvtepi32_ps(and(_mm256_srl_epi32(words[group / 4], bits), 0xff))
}

/// The same where bytes have a sign.
#[target_feature(enable = "avx2")]
#[inline]
fn signed(words: [__m256i; 2], group: usize) -> __m256 {
    let bits = _mm_cvtsi32_si128(24 - 8 * (group % 4) as i32);
    _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_sll_epi32(words[group / 4], bits)))
}

/// Two words `at` bytes behind the beginnings of eight outputs' blocks: a vector of outputs for each.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn two_words(blocks: &[*const u8; LANES], at: usize) -> [__m256i; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let of = |lane: usize| _mm_loadl_epi64(blocks[lane].add(at).cast());
        let pair = |lane: usize| _mm_unpacklo_epi32(of(lane), of(lane + 1));
        // Outputs 0, 1, 4 and 5, then the others.
        let first = _mm256_set_m128i(pair(4), pair(0));
        let last = _mm256_set_m128i(pair(6), pair(2));
        [_mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last)]
    }
}

/// Four words `at` bytes behind the beginnings of eight outputs' blocks: a vector of outputs for each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn words(blocks: &[*const u8; LANES], at: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promises.
    unsafe {
        // Outputs `i` and `i + 4`.
        let two =
            |i: usize| _mm256_loadu2_m128i(blocks[i + 4].add(at).cast(), blocks[i].add(at).cast());
        let [a, b, c, d] = [two(0), two(1), two(2), two(3)];
        let [low, high] = [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
        let [more_low, more_high] = [_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d)];
        [
            _mm256_unpacklo_epi64(low, more_low),
            _mm256_unpackhi_epi64(low, more_low),
            _mm256_unpacklo_epi64(high, more_high),
            _mm256_unpackhi_epi64(high, more_high),
        ]
    }
}

/// Those of the eight groups of blocks that begin with two scales and 12 bytes: six bits each, as `scales_and_mins` of the
/// checkpoint's codec has them.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn scales_and_minima(blocks: &[*const u8; LANES]) -> Params {
    // SAFETY: the caller's promises.
    unsafe {
        let [both, first, second, third] = words(blocks, 0);
        // The lower f16 of all outputs, then the upper ones.
        let lower = _mm256_and_si256(both, _mm256_set1_epi32(0xffff));
        let halves = _mm256_packus_epi32(lower, _mm256_srli_epi32::<16>(both));
        let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
        let d = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        let dmin = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
        let minus = _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0));
        // Four bits of the last groups, under the top bits of the first ones.
        let last = |own: __m256i, low: __m256i| {
            let top = _mm256_slli_epi32::<4>(and(_mm256_srli_epi32::<6>(own), 0x0303_0303));
            _mm256_or_si256(and(low, 0x0f0f_0f0f), top)
        };
        let steps = [and(first, 0x3f3f_3f3f), last(first, third)];
        let minima = [and(second, 0x3f3f_3f3f), last(second, _mm256_srli_epi32::<4>(third))];
        per_group(|group| {
            let (step, min) = (unsigned(steps, group), unsigned(minima, group));
            (_mm256_mul_ps(d, step), _mm256_mul_ps(minus, min))
        })
    }
}
