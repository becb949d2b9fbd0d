//! The operations of the tier with AVX2: a vector is two registers.

use std::arch::asm;
use std::arch::x86_64::*;

use super::vector::{Avx2, instructions};
use crate::device::cpu::isa::prefetch::{prefetch, prefetch_near};
use crate::device::cpu::isa::simd::{Kernel, LANES, Portable, Simd};

impl Simd for Avx2 {
    type V = (__m256, __m256); // Lanes 0..8 and 8..16.
    const WIDE_TILES: bool = false;
    type Part = __m256;
    const PARTS: usize = 2;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        instructions!((_mm256_set1_ps(value), _mm256_set1_ps(value)))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        let from = from.as_ptr();
        instructions!((_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))))
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> Self::V {
        let from = from.as_ptr().cast::<f32>();
        instructions!((_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))))
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        let from = from.as_ptr().cast::<__m128i>();
        instructions!((
            _mm256_cvtph_ps(_mm_loadu_si128(from)),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(1))),
        ))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::V {
        let from = from.as_ptr().cast::<__m128i>();
        instructions!({
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(1)));
            (
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        })
    }

    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u8; 64]) -> (Self::V, Self::V) {
        let from = from.as_ptr().cast::<__m256i>();
        instructions!({
            let (low, high) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let even = (_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high));
            let odd = (_mm256_and_si256(low, upper), _mm256_and_si256(high, upper));
            (
                (_mm256_castsi256_ps(even.0), _mm256_castsi256_ps(even.1)),
                (_mm256_castsi256_ps(odd.0), _mm256_castsi256_ps(odd.1)),
            )
        })
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::V {
        instructions!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            (
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            )
        })
    }

    #[inline(always)]
    fn halves_of_e4m3(self, from: &[u8; 128], to: &mut [u8; 256]) {
        let numbers = from.as_ptr().cast::<__m256i>();
        let none = instructions!({
            // The sign goes away, so that all ones are the largest byte that there is.
            let mut most = _mm256_setzero_si256();
            for at in 0..4 {
                let numbers = _mm256_loadu_si256(numbers.add(at));
                most = _mm256_max_epu8(most, _mm256_add_epi8(numbers, numbers));
            }
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(most, _mm256_set1_epi8(0xfe_u8 as i8)))
        });
        if none != 0 {
            return halves_with_none(from, to);
        }
        let to = to.as_mut_ptr().cast::<__m256i>();
        instructions!({
            let bits = _mm256_set1_epi16(0xbfff_u16 as i16);
            for (line, numbers) in from.as_chunks().0.iter().enumerate() {
                for (index, words) in shifted_words(numbers).into_iter().enumerate() {
                    _mm256_storeu_si256(to.add(4 * line + index), _mm256_and_si256(words, bits));
                }
            }
        })
    }

    #[inline(always)]
    fn load_part(self, from: &[f32; LANES], part: usize) -> Self::Part {
        instructions!(_mm256_loadu_ps(from.as_ptr().add(8 * (part % Self::PARTS))))
    }

    #[inline(always)]
    fn store_part(self, value: Self::Part, to: &mut [f32; LANES], part: usize) {
        instructions!(_mm256_storeu_ps(to.as_mut_ptr().add(8 * (part % Self::PARTS)), value))
    }

    #[inline(always)]
    fn mul_add_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part {
        instructions!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        fn compiled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        let to = to.as_mut_ptr();
        instructions!({
            _mm256_storeu_ps(to, value.0);
            _mm256_storeu_ps(to.add(8), value.1);
        })
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        instructions!((_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1),))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!((_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)))
    }

    #[inline(always)]
    fn pow2_of_shifted(self, shifted: Self::V) -> Self::V {
        instructions!({
            let bias = _mm256_set1_epi32(127 << 23);
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.1));
            (
                _mm256_castsi256_ps(_mm256_add_epi32(low, bias)),
                _mm256_castsi256_ps(_mm256_add_epi32(high, bias)),
            )
        })
    }

    #[inline(always)]
    fn sum(self, value: Self::V) -> f32 {
        instructions!(sum8(_mm256_add_ps(value.0, value.1)))
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        // Loops, since what a closure does may be compiled without these instructions.
        let mut columns = rows;
        for first in [0, 8] {
            let (mut low, mut high) = ([rows[0].0; 8], [rows[0].1; 8]);
            for i in 0..8 {
                (low[i], high[i]) = rows[first + i];
            }
            let (low, high) = instructions!((transposed8(low), transposed8(high)));
            for j in 0..8 {
                match first {
                    0 => (columns[j].0, columns[8 + j].0) = (low[j], high[j]),
                    _ => (columns[j].1, columns[8 + j].1) = (low[j], high[j]),
                }
            }
        }
        columns
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        prefetch(address);
    }

    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        prefetch_near(address);
    }
}

/// [`Simd::halves_of_e4m3`] where one is no number; apart, so that it takes no registers from anybody.
#[cold]
#[inline(never)]
fn halves_with_none(from: &[u8; 128], to: &mut [u8; 256]) {
    Portable.halves_of_e4m3(from, to);
}

/// Bytes as words, with their signs, times 128.
///
/// Written out, because the compiler takes bytes that it has in a register already from there, which is another shuffle, and
/// shifts instead of multiplying, which waits for the same part of the processor as shuffles do.
#[target_feature(enable = "avx2")]
#[inline]
fn shifted_words(from: &[u8; 64]) -> [__m256i; 4] {
    let (a, b, c, d);
    // SAFETY: it reads the array; the function is compiled for the instructions.
    unsafe {
        asm!(
            "vpmovsxbw {a}, xmmword ptr [{from}]",
            "vpmovsxbw {b}, xmmword ptr [{from} + 16]",
            "vpmovsxbw {c}, xmmword ptr [{from} + 32]",
            "vpmovsxbw {d}, xmmword ptr [{from} + 48]",
            "vpmullw {a}, {a}, {by}",
            "vpmullw {b}, {b}, {by}",
            "vpmullw {c}, {c}, {by}",
            "vpmullw {d}, {d}, {by}",
            a = out(ymm_reg) a,
            b = out(ymm_reg) b,
            c = out(ymm_reg) c,
            d = out(ymm_reg) d,
            by = in(ymm_reg) _mm256_set1_epi16(128),
            from = in(reg) from.as_ptr(),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [a, b, c, d]
}

/// Sum of eight lanes: `i` with `i + 4`, then `+ 2`, `+ 1`.
#[inline(always)]
pub(super) unsafe fn sum8(value: __m256) -> f32 {
    // SAFETY: called by methods of the tiers only, whose `self` proves AVX2 (and with it SSE3).
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        let one = _mm_add_ss(two, _mm_movehdup_ps(two));
        _mm_cvtss_f32(one)
    }
}

/// Rows become columns: lane `j` of row `i` goes to lane `i` of row `j`.
///
/// # Safety
/// The processor has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(crate) unsafe fn transposed8(rows: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut pairs = rows; // Within 128 bits: 2 × 2 of 32 bits, then 2 × 2 of 64.
        for i in (0..8).step_by(2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        let mut quads = pairs;
        for i in (0..8).step_by(4) {
            quads[i] = _mm256_shuffle_ps::<0x44>(pairs[i], pairs[i + 2]);
            quads[i + 1] = _mm256_shuffle_ps::<0xee>(pairs[i], pairs[i + 2]);
            quads[i + 2] = _mm256_shuffle_ps::<0x44>(pairs[i + 1], pairs[i + 3]);
            quads[i + 3] = _mm256_shuffle_ps::<0xee>(pairs[i + 1], pairs[i + 3]);
        }
        let mut columns = rows;
        for c in 0..4 {
            columns[c] = _mm256_permute2f128_ps::<0x20>(quads[c], quads[4 + c]);
            columns[4 + c] = _mm256_permute2f128_ps::<0x31>(quads[c], quads[4 + c]);
        }
        columns
    }
}
