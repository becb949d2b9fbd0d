//! The operations of the tier with AVX-512: a vector is one register.

use std::arch::x86_64::*;

use super::avx2::sum8;
use super::line::transposed;
use super::vector::{Avx512, instructions};
use crate::device::cpu::isa::prefetch::{prefetch, prefetch_near};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

impl Simd for Avx512 {
    type V = __m512;
    const WIDE_TILES: bool = true;
    type Part = __m512;
    const PARTS: usize = 1;
    const MANY_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        instructions!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        instructions!(_mm512_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> Self::V {
        instructions!(_mm512_loadu_ps(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        instructions!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::V {
        instructions!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u8; 64]) -> (Self::V, Self::V) {
        instructions!({
            let pairs = _mm512_loadu_si512(from.as_ptr().cast());
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd))
        })
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::V {
        instructions!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        })
    }

    #[inline(always)]
    fn halves_of_e4m3(self, from: &[u8; 128], to: &mut [u8; 256]) {
        self.avx2().halves_of_e4m3(from, to);
    }

    #[inline(always)]
    fn load_part(self, from: &[f32; LANES], _: usize) -> Self::Part {
        self.load(from)
    }

    #[inline(always)]
    fn store_part(self, value: Self::Part, to: &mut [f32; LANES], _: usize) {
        self.store(value, to);
    }

    #[inline(always)]
    fn mul_add_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        #[inline(never)]
        fn compiled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        instructions!(_mm512_storeu_ps(to.as_mut_ptr(), value))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        instructions!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        instructions!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn pow2_of_shifted(self, shifted: Self::V) -> Self::V {
        instructions!({
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)))
        })
    }

    #[inline(always)]
    fn sum(self, value: Self::V) -> f32 {
        instructions!(sum8(_mm256_add_ps(
            _mm512_castps512_ps256(value),
            _mm512_extractf32x8_ps::<1>(value),
        )))
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        // Loops, since what a closure does may be compiled without these instructions.
        let mut bits = [instructions!(_mm512_setzero_si512()); LANES];
        for (bits, row) in bits.iter_mut().zip(rows) {
            *bits = instructions!(_mm512_castps_si512(row));
        }
        let bits = instructions!(transposed(bits));
        let mut columns = rows;
        for (column, bits) in columns.iter_mut().zip(bits) {
            *column = instructions!(_mm512_castsi512_ps(bits));
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
