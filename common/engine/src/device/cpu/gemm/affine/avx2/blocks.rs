//! Matrices of GGUF's blocks: how each type's codes, scales and biases come into registers as it lies in the file.
//!
//! The codes, scales and biases are those that the checkpoint's codec unpacks to, to the bit.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::packed::split;
use super::stored::{LANES, Params, Stored, WORDS};

/// A type of blocks, of which a piece has `V` vectors of words in `N` sheaves.
///
/// # Safety
/// Whoever implements it promises that the methods read the bytes of one block each, or of as many as they are told.
pub(super) unsafe trait Block<const V: usize, const N: usize>:
    Copy + Send + Sync
{
    /// Codes of a block: whole pieces.
    const CODES: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Codes that share a scale and a bias.
    const GROUP: usize;

    /// The codes of a piece of the block that begins `block` bytes behind `row`. The addresses of eight outputs' pieces
    /// differ by their rows alone.
    ///
    /// # Safety
    /// There are such a block and such a piece, and the caller is compiled for AVX2.
    unsafe fn codes(row: *const u8, block: usize, piece: usize) -> [__m256i; V];

    /// Scales and biases of `count` groups, at most [`LANES`], of eight outputs, of which the blocks are these. If a block
    /// has several groups, they are eight from group `first` of it on; else they are those of as many blocks.
    ///
    /// # Safety
    /// There are such groups, and the caller is compiled for AVX2, FMA and F16C.
    unsafe fn params(blocks: &[*const u8; LANES], first: usize, count: usize) -> Params;
}

/// A matrix of such blocks, row after row.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a, B> {
    bytes: &'a [u8],
    outputs: usize,
    /// Bytes of an output.
    row_bytes: usize,
    kind: PhantomData<B>,
}

impl<'a, B> Blocks<'a, B> {
    /// `outputs` of `inputs` each.
    ///
    /// # Panics
    /// If `bytes` are not so many.
    pub(super) fn new<const V: usize, const N: usize>(
        bytes: &'a [u8],
        outputs: usize,
        inputs: usize,
    ) -> Blocks<'a, B>
    where
        B: Block<V, N>,
    {
        assert!(inputs > 0 && inputs.is_multiple_of(B::CODES), "whole blocks");
        let row_bytes = inputs / B::CODES * B::BYTES;
        assert_eq!(bytes.len(), outputs * row_bytes, "whole outputs");
        Blocks { bytes, outputs, row_bytes, kind: PhantomData }
    }
}

// SAFETY: what is read are blocks of a row that there are, by the promises of `Block` and of the caller.
unsafe impl<B: Block<V, N>, const V: usize, const N: usize> Stored<V, N> for Blocks<'_, B> {
    type Row = *const u8;
    const GROUP: usize = B::GROUP;
    const PIECE_BYTES: usize = (B::BYTES * V * WORDS).div_ceil(B::CODES);

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn groups(&self) -> usize {
        self.row_bytes / B::BYTES * (B::CODES / B::GROUP)
    }

    fn bytes(&self) -> (*const u8, usize) {
        (self.bytes.as_ptr(), self.row_bytes)
    }

    #[inline(always)]
    fn row(&self, output: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(output * self.row_bytes)
    }

    #[inline(always)]
    unsafe fn codes(&self, row: *const u8, piece: usize) -> [__m256i; V] {
        let pieces = B::CODES / (V * WORDS);
        // SAFETY: the caller's promises.
        unsafe { B::codes(row, piece / pieces * B::BYTES, piece % pieces) }
    }

    #[inline(always)]
    unsafe fn params(&self, rows: &[*const u8; LANES], first: usize, count: usize) -> Params {
        let groups = B::CODES / B::GROUP;
        let blocks = rows.map(|row| row.wrapping_add(first / groups * B::BYTES));
        // SAFETY: the caller's promises.
        unsafe { B::params(&blocks, first % groups, count) }
    }
}

/// Declares types of blocks: codes, bytes, group, vectors and sheaves of a piece, then how codes and parameters of a block
/// are found.
macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident: $codes:literal codes in $bytes:literal bytes, groups of $group:literal,
        pieces of $v:literal vectors in $n:literal sheaves,
        |$row:ident, $block:ident, $piece:ident| $load:expr,
        |$blocks:ident, $first:ident, $count:ident| $params:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        // SAFETY: every access is inside of the block as the type is defined.
        unsafe impl Block<$v, $n> for $name {
            const CODES: usize = $codes;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;

            #[inline(always)]
            unsafe fn codes($row: *const u8, $block: usize, $piece: usize) -> [__m256i; $v] {
                // SAFETY: the caller's promises.
                unsafe { $load }
            }

            #[target_feature(enable = "avx2,fma,f16c")] // Closures in it have these instructions, too.
            #[inline]
            unsafe fn params($blocks: &[*const u8; LANES], $first: usize, $count: usize) -> Params {
                // SAFETY: the caller's promises.
                unsafe { $params }
            }
        }
    )+};
}

blocks! {
    /// A scale, then halves.
    Q4_0: 32 codes in 18 bytes, groups of 32, pieces of 2 vectors in 1 sheaves,
        |row, block, _piece| word_halves(row.add(block + 2)),
        |blocks, _first, count| one_scale(blocks, 18, count, -8.0);
    /// A scale and a minimum, then halves.
    Q4_1: 32 codes in 20 bytes, groups of 32, pieces of 2 vectors in 1 sheaves,
        |row, block, _piece| word_halves(row.add(block + 4)),
        |blocks, _first, count| scale_and_minimum(blocks, 20, count);
    /// A scale, 32 fifth bits, then halves.
    Q5_0: 32 codes in 22 bytes, groups of 32, pieces of 2 vectors in 1 sheaves,
        |row, block, _piece| {
            split(_mm256_or_si256(halves(row.add(block + 6)), fifths(row.add(block + 2))))
        },
        |blocks, _first, count| one_scale(blocks, 22, count, -16.0);
    /// A scale and a minimum, 32 fifth bits, then halves.
    Q5_1: 32 codes in 24 bytes, groups of 32, pieces of 2 vectors in 1 sheaves,
        |row, block, _piece| {
            split(_mm256_or_si256(halves(row.add(block + 8)), fifths(row.add(block + 4))))
        },
        |blocks, _first, count| scale_and_minimum(blocks, 24, count);
    /// A scale, then signed bytes: 128 more makes them unsigned.
    Q8_0: 32 codes in 34 bytes, groups of 32, pieces of 2 vectors in 1 sheaves,
        |row, block, _piece| {
            split(_mm256_xor_si256(bytes(row.add(block + 2)), _mm256_set1_epi8(i8::MIN)))
        },
        |blocks, _first, count| one_scale(blocks, 34, count, -128.0);
    /// A scale of scales and one of minima, 12 bytes of both, then halves: of 32 bytes the lower ones, then the upper ones.
    Q4K: 256 codes in 144 bytes, groups of 32, pieces of 4 vectors in 2 sheaves,
        |row, block, piece| {
            let [bytes, low] = [bytes(row.add(block + 16 + 32 * piece)), _mm256_set1_epi16(15)];
            [
                _mm256_and_si256(bytes, low),
                _mm256_and_si256(_mm256_srli_epi16::<8>(bytes), low),
                _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low),
                _mm256_srli_epi16::<12>(bytes),
            ]
        },
        |blocks, _first, _count| scales_and_minima(blocks);
    /// As [`Q4K`], and before the halves 32 bytes with fifth bits: bit `i` is that of group `i`.
    Q5K: 256 codes in 176 bytes, groups of 32, pieces of 4 vectors in 2 sheaves,
        |row, block, piece| {
            let fifths = _mm_cvtsi32_si128(2 * piece as i32);
            let fifths = _mm256_srl_epi16(bytes(row.add(block + 16)), fifths);
            let bytes = bytes(row.add(block + 48 + 32 * piece));
            let [low, fifth] = [_mm256_set1_epi8(15), _mm256_set1_epi8(16)];
            let first = _mm256_and_si256(_mm256_slli_epi16::<4>(fifths), fifth);
            let last = _mm256_and_si256(_mm256_slli_epi16::<3>(fifths), fifth);
            let first = _mm256_or_si256(_mm256_and_si256(bytes, low), first);
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low);
            let [[a, b], [c, d]] = [split(first), split(_mm256_or_si256(upper, last))];
            [a, b, c, d]
        },
        |blocks, _first, _count| scales_and_minima(blocks);
    /// 128 bytes of halves, 64 of pairs of bits above them, 16 scales and a scale of these. Half of a block has 64 bytes of
    /// halves, whose lower ones come first, and 32 of pairs, of which 32 codes after the other have one.
    Q6K: 256 codes in 210 bytes, groups of 16, pieces of 8 vectors in 4 sheaves,
        |row, block, piece| {
            let [low, pair] = [_mm256_set1_epi8(15), _mm256_set1_epi8(0x30)];
            let first = bytes(row.add(block + 64 * piece));
            let last = bytes(row.add(block + 64 * piece + 32));
            let pairs = bytes(row.add(block + 128 + 32 * piece));
            let upper = |bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low);
            let with = |low, pairs| split(_mm256_or_si256(low, _mm256_and_si256(pairs, pair)));
            let [a, b] = with(_mm256_and_si256(first, low), _mm256_slli_epi16::<4>(pairs));
            let [c, d] = with(_mm256_and_si256(last, low), _mm256_slli_epi16::<2>(pairs));
            let [e, f] = with(upper(first), pairs);
            let [g, h] = with(upper(last), _mm256_srli_epi16::<2>(pairs));
            [a, b, c, d, e, f, g, h]
        },
        |blocks, first, _count| {
            let d = scales(blocks, 208);
            let words = words(blocks, 192);
            per_group(|group| {
                let at = (first + group) / 4;
                let step = _mm256_srai_epi32::<24>(_mm256_sll_epi32(
                    words[at],
                    _mm_cvtsi32_si128(24 - 8 * (group % 4) as i32),
                ));
                centred(_mm256_mul_ps(d, _mm256_cvtepi32_ps(step)), -32.0)
            })
        };
}

/// Scales, and each of them times `centre`: codes that are this much less.
#[inline(always)]
unsafe fn centred(scales: __m256, centre: f32) -> (__m256, __m256) {
    // SAFETY: the caller is compiled for AVX2.
    unsafe { (scales, _mm256_mul_ps(_mm256_set1_ps(centre), scales)) }
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
    // SAFETY: the caller's promises; blocks have more than four bytes.
    unsafe {
        per_block(count, |at| {
            let [scales, minima] = pairs(blocks, at * bytes);
            (_mm256_cvtph_ps(scales), _mm256_cvtph_ps(minima))
        })
    }
}

/// Scales and biases of eight groups, each of eight outputs.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn per_group(group: impl Fn(usize) -> (__m256, __m256)) -> Params {
    // SAFETY: the caller is compiled for AVX2.
    unsafe { per_block(LANES, group) }
}

/// Scales and biases of `count` groups, each of eight outputs.
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

/// 32 bytes.
#[inline(always)]
unsafe fn bytes(from: *const u8) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// The lower halves of 16 bytes, then the upper ones.
#[inline(always)]
unsafe fn halves(from: *const u8) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe {
        let twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
        let bits = _mm256_set_epi64x(4, 4, 0, 0);
        _mm256_and_si256(_mm256_srlv_epi64(twice, bits), _mm256_set1_epi8(15))
    }
}

/// The same as words: the even ones, then the odd ones.
#[inline(always)]
unsafe fn word_halves(from: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
        // What comes from a word's neighbour lies above its lowest four bits.
        let even = _mm256_srlv_epi64(twice, _mm256_set_epi64x(4, 4, 0, 0));
        let odd = _mm256_srlv_epi64(twice, _mm256_set_epi64x(12, 12, 8, 8));
        let low = _mm256_set1_epi16(15);
        [_mm256_and_si256(even, low), _mm256_and_si256(odd, low)]
    }
}

/// 32 bits as the fifth bits of as many bytes.
#[inline(always)]
unsafe fn fifths(from: *const u8) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe {
        let bits = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
        // Each byte eight times, then bit `i` of byte `i` of eight.
        let places = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_and_si256(_mm256_shuffle_epi8(bits, places), own);
        _mm256_and_si256(_mm256_cmpeq_epi8(set, own), _mm256_set1_epi8(16))
    }
}

/// The f16 `at` bytes behind the beginnings of eight outputs' blocks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn scales(blocks: &[*const u8; LANES], at: usize) -> __m256 {
    // SAFETY: the caller's promises.
    unsafe {
        let half = |lane: usize| blocks[lane].add(at).cast::<i16>().read_unaligned();
        let [a, b, c, d, e, f, g, h] =
            [half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)];
        _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
    }
}

/// The two numbers of 16 bits `at` bytes behind the beginnings of eight outputs' blocks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn pairs(blocks: &[*const u8; LANES], at: usize) -> [__m128i; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let pair =
            |lane: usize| _mm_cvtsi32_si128(blocks[lane].add(at).cast::<i32>().read_unaligned());
        let [a, b] = [_mm_unpacklo_epi16(pair(0), pair(1)), _mm_unpacklo_epi16(pair(2), pair(3))];
        let [c, d] = [_mm_unpacklo_epi16(pair(4), pair(5)), _mm_unpacklo_epi16(pair(6), pair(7))];
        let [first, last] = [_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d)];
        [_mm_unpacklo_epi64(first, last), _mm_unpackhi_epi64(first, last)]
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

/// Those of the eight groups of blocks that begin with two scales and 12 bytes: six bits each, as `scale_and_min` of the
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
        let and = |a: __m256i, bits: i32| _mm256_and_si256(a, _mm256_set1_epi32(bits));
        // Four bits of the last groups, under the top bits of the first ones.
        let last = |own: __m256i, low: __m256i| {
            let top = _mm256_slli_epi32::<4>(and(_mm256_srli_epi32::<6>(own), 0x0303_0303));
            _mm256_or_si256(and(low, 0x0f0f_0f0f), top)
        };
        let steps = [and(first, 0x3f3f_3f3f), last(first, third)];
        let minima = [and(second, 0x3f3f_3f3f), last(second, _mm256_srli_epi32::<4>(third))];
        per_group(|group| {
            let bits = _mm_cvtsi32_si128(8 * (group % 4) as i32);
            let six = |words: __m256i| _mm256_cvtepi32_ps(and(_mm256_srl_epi32(words, bits), 0xff));
            let (step, min) = (six(steps[group / 4]), six(minima[group / 4]));
            (_mm256_mul_ps(d, step), _mm256_mul_ps(minus, min))
        })
    }
}
