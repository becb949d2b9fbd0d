//! Codes of 4 bits that are places in a table, and scales of a byte.

use std::arch::x86_64::*;

/// What codes of 4 bits stand for, as unsigned bytes.
pub(super) type Table = [u8; 16];

/// Twice the numbers of E2M1, 12 more: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, then the same with the other sign.
pub(super) static TWICE_AND_12: Table = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// The numbers of IQ4_NL and IQ4_XS, 128 more.
pub(super) static UNEVEN_AND_128: Table =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Halves of powers of two, of which the exponents, 127 more, are eight numbers from 0 to 255.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn half_powers(exponents: __m256i) -> __m256 {
    let one = _mm256_set1_epi32(1);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, one));
    // Of 0 and 1, which have no normal half: 2^-128 and 2^-127. Beyond them the others are larger, or as large.
    let subnormal =
        _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), _mm256_min_epi32(exponents, one));
    _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal))
}

/// Halves of eight E8M0, which are the lower bytes of `bytes`; of 255 it is no number.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn half_e8m0(bytes: __m128i) -> __m256 {
    let exponents = _mm256_cvtepu8_epi32(bytes);
    let is_none = _mm256_cmpeq_epi32(exponents, _mm256_set1_epi32(255));
    let none = _mm256_and_ps(_mm256_castsi256_ps(is_none), _mm256_set1_ps(f32::NAN));
    _mm256_or_ps(half_powers(exponents), none)
}

/// Eight E4M3, which are the lower bytes of `bytes`.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn e4m3(bytes: __m128i) -> __m256 {
    let words = _mm_cvtepu8_epi16(bytes);
    let magnitude = _mm_and_si128(words, _mm_set1_epi16(0x7f));
    let sign = _mm_slli_epi16::<8>(_mm_xor_si128(words, magnitude));
    // The bits of an f16 with one bit more of exponent, whose bias is 8 more.
    let half = _mm_or_si128(_mm_slli_epi16::<7>(magnitude), sign);
    // All ones is no number, which f16 says with other bits.
    let is_none = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    let half = _mm_xor_si128(half, _mm_and_si128(is_none, _mm_set1_epi16(0x3f80 ^ 0x7e00)));
    _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::isa::tier::Tier;
    use crate::testing::not_shown;

    /// What `of` makes of every byte.
    fn all(of: impl Fn(__m128i) -> __m256) -> Vec<f32> {
        let eight = |first: i64| {
            let bytes: i64 =
                (0..8).map(|at| (8 * first + at) << (8 * at)).fold(0, |all, it| all | it);
            let mut lanes = [0f32; 8];
            // SAFETY: whoever calls this saw that the processor has AVX2; a whole array.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), of(_mm_cvtsi64_si128(bytes))) };
            lanes
        };
        (0..32).flat_map(eight).collect()
    }

    #[test]
    fn every_byte_is_the_scale_that_is_defined() {
        if Tier::detect().avx2().is_none() {
            return not_shown("scales of a byte", "this processor has no AVX2");
        }
        // SAFETY: the processor has the instructions.
        let (powers, e8m0, e4m3) = unsafe {
            (
                all(|it| half_powers(_mm256_cvtepu8_epi32(it))),
                all(|it| half_e8m0(it)),
                all(|it| e4m3(it)),
            )
        };
        for byte in 0..256usize {
            let power = 2f64.powi(byte as i32 - 128) as f32;
            assert_eq!(powers[byte], power, "{byte}");
            assert_eq!(e8m0[byte].to_bits(), if byte == 255 { f32::NAN } else { power }.to_bits());
            let (exponent, fraction) = ((byte >> 3 & 15) as i32, (byte & 7) as f64 / 8.0);
            let magnitude = match (byte & 0x7f, exponent) {
                (0x7f, _) => f64::from(f32::NAN),
                (_, 0) => fraction * 2f64.powi(-6),
                _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
            };
            let defined = if byte < 128 { magnitude } else { -magnitude } as f32;
            assert_eq!(e4m3[byte].to_bits(), defined.to_bits(), "{byte}");
        }
    }
}
