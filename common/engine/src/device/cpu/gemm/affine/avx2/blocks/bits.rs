//! What several types of blocks have.

use std::arch::x86_64::*;

use super::super::stored::LANES;

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
