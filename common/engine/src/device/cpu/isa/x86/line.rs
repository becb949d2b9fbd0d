//! Vectors of 64 bytes in memory, and squares of them.

use std::arch::x86_64::*;

use crate::device::cpu::isa::simd::LANES;

/// One vector in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

impl Line {
    pub(crate) const ZERO: Line = Line([0; 64]);

    /// The f32 in one lane.
    #[inline(always)]
    pub(crate) fn lane(&self, lane: usize) -> f32 {
        f32::from_ne_bytes(self.0.as_chunks().0[lane])
    }

    /// Sets the f32 in one lane.
    pub(crate) fn set_lane(&mut self, lane: usize, value: f32) {
        self.0.as_chunks_mut().0[lane] = value.to_ne_bytes();
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn read(&self) -> __m512i {
        // SAFETY: a line is an aligned vector.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn write(&mut self, value: __m512i) {
        // SAFETY: a line is an aligned vector.
        unsafe { _mm512_store_si512(self.0.as_mut_ptr().cast(), value) }
    }
}

/// At most 64 bytes; the rest of the vector is zero.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn read_bytes(bytes: &[u8]) -> __m512i {
    let mask = u64::MAX.checked_shr(64 - bytes.len().min(64) as u32).unwrap_or(0);
    // SAFETY: a masked load touches the bytes of the slice alone.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

/// Rows become columns: lane `j` of row `i` goes to lane `i` of row `j`.
///
/// # Safety
/// The processor has AVX-512, and the caller is compiled for it.
#[inline(always)]
pub(crate) unsafe fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut pairs = rows; // Within 128 bits: 2 × 2 of 32 bits, then 2 × 2 of 64.
        for i in (0..LANES).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut quads = pairs;
        for i in (0..LANES).step_by(4) {
            quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
            quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
            quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
            quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
        }
        // `quads[4b + c]` has column `4l + c` of rows `4b..4b + 4` in its 128-bit lane `l`: now
        // 4 × 4 of those.
        let mut columns = rows;
        for c in 0..4 {
            let low = _mm512_shuffle_i32x4::<0x44>(quads[c], quads[4 + c]);
            let high = _mm512_shuffle_i32x4::<0xee>(quads[c], quads[4 + c]);
            let low_end = _mm512_shuffle_i32x4::<0x44>(quads[8 + c], quads[12 + c]);
            let high_end = _mm512_shuffle_i32x4::<0xee>(quads[8 + c], quads[12 + c]);
            columns[c] = _mm512_shuffle_i32x4::<0x88>(low, low_end);
            columns[4 + c] = _mm512_shuffle_i32x4::<0xdd>(low, low_end);
            columns[8 + c] = _mm512_shuffle_i32x4::<0x88>(high, high_end);
            columns[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high, high_end);
        }
        columns
    }
}
