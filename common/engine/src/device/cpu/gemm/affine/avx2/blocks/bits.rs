//! What several types of blocks have.

use std::arch::x86_64::*;

use super::super::stored::LANES;

/// 32 bytes.
#[inline(always)]
pub(super) unsafe fn bytes(from: *const u8) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

/// 32 bytes, in words shifted to the right by so many bits.
#[inline(always)]
pub(super) unsafe fn shifted(from: *const u8, bits: usize) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_srl_epi16(bytes(from), _mm_cvtsi32_si128(bits as i32)) }
}

/// The lower halves of 16 bytes, then the upper ones.
#[inline(always)]
pub(super) unsafe fn halves(from: *const u8) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe {
        let twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()));
        let bits = _mm256_set_epi64x(4, 4, 0, 0);
        _mm256_and_si256(_mm256_srlv_epi64(twice, bits), _mm256_set1_epi8(15))
    }
}

/// The f16 `at` bytes behind the beginnings of eight outputs' blocks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) unsafe fn scales(blocks: &[*const u8; LANES], at: usize) -> __m256 {
    // SAFETY: the caller's promises.
    unsafe {
        let half = |lane: usize| blocks[lane].add(at).cast::<i16>().read_unaligned();
        let [a, b, c, d, e, f, g, h] =
            [half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)];
        _mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h))
    }
}
