//! Sums across the lanes of vectors of eight, and transpositions of such.

use std::arch::x86_64::*;

use super::stored::LANES;

/// Sums of the four lanes of each half: lane `i` of a half is that of `sums[i]`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn four_sums(sums: [__m256i; LANES / 2]) -> __m256i {
    let pair = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let [a, b] = [pair(sums[0], sums[1]), pair(sums[2], sums[3])];
    _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}

/// The lower halves of both, and the upper ones.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn halves([first, last]: [__m256i; 2]) -> (__m256i, __m256i) {
    (_mm256_permute2x128_si256::<0x20>(first, last), _mm256_permute2x128_si256::<0x31>(first, last))
}

/// Rows of each half become its columns: word `j` of a half of vector `i` goes to word `i` of that half of vector `j`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transposed_words(rows: [__m256i; LANES]) -> [__m256i; LANES] {
    let mut pairs = rows; // 2 × 2 of 16 bits, then of 32, then of 64.
    for i in 0..LANES / 2 {
        pairs[2 * i] = _mm256_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
    }
    let mut quads = pairs;
    for i in [0, 4] {
        quads[i] = _mm256_unpacklo_epi32(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm256_unpackhi_epi32(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm256_unpacklo_epi32(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm256_unpackhi_epi32(pairs[i + 1], pairs[i + 3]);
    }
    let mut columns = quads;
    for i in 0..LANES / 2 {
        columns[2 * i] = _mm256_unpacklo_epi64(quads[i], quads[4 + i]);
        columns[2 * i + 1] = _mm256_unpackhi_epi64(quads[i], quads[4 + i]);
    }
    columns
}
