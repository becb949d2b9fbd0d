//! Vectors of 32 numbers as bf16, on processors that multiply pairs of them.

use std::arch::x86_64::*;

/// `a` and `b` rounded to nearest, ties to even: 16 of `a`, then 16 of `b`.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(crate) fn round_pairs(a: __m512, b: __m512) -> __m512i {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a)) }
}

/// What `a` and `b` have beyond `rounded`, exactly.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn rounding_errors(a: __m512, b: __m512, rounded: __m512i) -> (__m512, __m512) {
    let low = widen(_mm512_castsi512_si256(rounded));
    let high = widen(_mm512_extracti64x4_epi64::<1>(rounded));
    (_mm512_sub_ps(a, low), _mm512_sub_ps(b, high))
}

/// At most 32 numbers as the sum of two bf16: both planes, with zeros behind the last.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(crate) fn split_pairs(x: &[f32]) -> [__m512i; 2] {
    let mask = u32::MAX.checked_shr(32 - x.len() as u32).unwrap_or(0);
    // SAFETY: masked loads touch the elements of the slice alone.
    let (a, b) = unsafe {
        (
            _mm512_maskz_loadu_ps(mask as u16, x.as_ptr()),
            _mm512_maskz_loadu_ps((mask >> 16) as u16, x.as_ptr().wrapping_add(16)),
        )
    };
    let high = round_pairs(a, b);
    let left = rounding_errors(a, b, high);
    [high, round_pairs(left.0, left.1)]
}

/// 16 bf16 as f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn widen(half: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
}

#[cfg(test)]
mod tests;
