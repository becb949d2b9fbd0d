//! The parts of the GEMV: products of a vector of codes, and sums of them across its lanes.

use std::arch::x86_64::*;

use super::task::CHUNK;
use crate::device::cpu::gemm::weight::MAX_GROUP;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::Line;

/// Inputs that are taken at once: whole groups of every size, and chunks of every width of code.
pub(crate) const SPAN: usize = MAX_GROUP;
/// How many fours of outputs are computed with at a time.
pub(crate) const FOURS: usize = LANES / 4;

/// Activations of a span in the order of half bytes: the upper bytes of those that low halves are multiplied with and of those
/// that high ones are, then the lower bytes of both.
pub(crate) type Sorted = [Line; 4];

/// Quarter `q` of `fours[b]` has outputs `4b..4b + 4`: 4 × 4 quarters change places, so that there is a vector of outputs for
/// each.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn by_quarters([a, b, c, d]: &[Line; FOURS]) -> [__m512i; 4] {
    let (a, b, c, d) = (a.read(), b.read(), c.read(), d.read());
    let low_a = _mm512_shuffle_i32x4::<0x44>(a, b);
    let high_a = _mm512_shuffle_i32x4::<0xee>(a, b);
    let low_b = _mm512_shuffle_i32x4::<0x44>(c, d);
    let high_b = _mm512_shuffle_i32x4::<0xee>(c, d);
    [
        _mm512_shuffle_i32x4::<0x88>(low_a, low_b),
        _mm512_shuffle_i32x4::<0xdd>(low_a, low_b),
        _mm512_shuffle_i32x4::<0x88>(high_a, high_b),
        _mm512_shuffle_i32x4::<0xdd>(high_a, high_b),
    ]
}

/// Products of [`CHUNK`] bytes of codes of one output with the activations of both planes, or of the lower one alone: a sum for
/// every four bytes. Beside half bytes, activations are as [`sort`] has them.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
pub(crate) fn output_sums<const BITS: usize, const PLANES: usize>(
    codes: __m512i,
    high: (__m512i, __m512i),
    low: (__m512i, __m512i),
) -> __m512i {
    let mut sum = _mm512_setzero_si512();
    if BITS == 4 {
        let half = _mm512_set1_epi8(0xf);
        let even = _mm512_and_si512(codes, half);
        let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), half);
        if PLANES == 2 {
            sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, high.0), odd, high.1);
            sum = _mm512_slli_epi32::<8>(sum);
        }
        _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, low.0), odd, low.1)
    } else {
        if PLANES == 2 {
            sum = _mm512_slli_epi32::<8>(_mm512_dpbusd_epi32(sum, codes, high.0));
        }
        _mm512_dpbusd_epi32(sum, codes, low.0)
    }
}

/// The activations of a span in the order of half bytes, upper bytes and lower ones.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn sort(high: &[i8; SPAN], low: &[i8; SPAN]) -> Sorted {
    const { assert!(SPAN == 2 * CHUNK) }
    let mut sorted = [Line::ZERO; 4];
    for (plane, sorted) in [high, low].into_iter().zip(sorted.chunks_exact_mut(2)) {
        let [first, last] = [&plane[..CHUNK], &plane[CHUNK..]];
        // SAFETY: a span is two vectors.
        let (first, last) = unsafe {
            (_mm512_loadu_si512(first.as_ptr().cast()), _mm512_loadu_si512(last.as_ptr().cast()))
        };
        // 16 even ones, 16 odd ones, and so on.
        sorted[0].write(_mm512_shuffle_i32x4::<0x88>(first, last));
        sorted[1].write(_mm512_shuffle_i32x4::<0xdd>(first, last));
    }
    sorted
}

/// Sums of the four lanes of every quarter: lane `i` of a quarter is that of `sums[i]`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn quarter_sums(sums: [__m512i; 4]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pair(sums[0], sums[1]), pair(sums[2], sums[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}
