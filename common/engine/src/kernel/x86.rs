//! The vector tiers of x86-64. Values of [`Avx2`] and [`Avx512`] exist only where the processor
//! has their instructions, which is what makes the methods safe.

use std::arch::asm;
use std::arch::x86_64::*;

use super::simd::{Kernel, LANES, Simd};

/// Wraps calls of intrinsics that need nothing but their instructions.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: `self` is made by `detect` alone, after the processor said it has these
        // instructions; loads and stores go through references to whole arrays.
        unsafe { $($body)* }
    }};
}

/// Asks for the cache line at `address`, which need not be valid: into the second-level cache,
/// which waits for more lines at a time than the first.
///
/// Written out, because the compiler gathers the intrinsic's calls, and requests that come many
/// at a time hold up the loads behind them.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe { asm!("prefetcht1 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// Asks for the cache line at `address`, which need not be valid, from the second-level cache into
/// the first: a load that has to wait for it holds one of the few places that lines on their way from
/// memory need.
#[inline(always)]
pub(super) fn prefetch_near(address: *const u8) {
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) }
}

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The tier, if this processor has it.
    pub(super) fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// Runs `kernel` with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }
}

/// Proof of AVX-512 F, BW, DQ and VL beside AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The tier, if this processor has it.
    pub(super) fn detect() -> Option<Avx512> {
        let found = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        found.then_some(Avx512(()))
    }

    /// Runs `kernel` with these instructions.
    #[inline]
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }
}

/// Proof of AVX512-BF16 beside [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(());

impl Avx512 {
    /// Products of bf16 pairs, if this processor has them.
    pub(super) fn bf16(self) -> Option<Avx512Bf16> {
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(()))
    }
}

/// Proof of AVX512-VNNI beside [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Vnni(());

impl Avx512 {
    /// Products of bytes, if this processor has them.
    pub(super) fn vnni(self) -> Option<Avx512Vnni> {
        is_x86_feature_detected!("avx512vnni").then_some(Avx512Vnni(()))
    }
}

/// One vector in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    pub(super) const ZERO: Line = Line([0; 64]);

    /// The f32 in one lane.
    #[inline(always)]
    pub(super) fn lane(&self, lane: usize) -> f32 {
        f32::from_ne_bytes(self.0.as_chunks().0[lane])
    }

    /// Sets the f32 in one lane.
    pub(super) fn set_lane(&mut self, lane: usize, value: f32) {
        self.0.as_chunks_mut().0[lane] = value.to_ne_bytes();
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn read(&self) -> __m512i {
        // SAFETY: a line is an aligned vector.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn write(&mut self, value: __m512i) {
        // SAFETY: a line is an aligned vector.
        unsafe { _mm512_store_si512(self.0.as_mut_ptr().cast(), value) }
    }
}

/// At most 64 bytes; the rest of the vector is zero.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn read_bytes(bytes: &[u8]) -> __m512i {
    let mask = u64::MAX.checked_shr(64 - bytes.len().min(64) as u32).unwrap_or(0);
    // SAFETY: a masked load touches the bytes of the slice alone.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

/// Sum of eight lanes: `i` with `i + 4`, then `+ 2`, `+ 1`.
#[inline(always)]
unsafe fn sum8(value: __m256) -> f32 {
    // SAFETY: called by the methods below only, whose `self` proves AVX2 (and with it SSE3).
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
/// The processor has AVX-512, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
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

/// Rows become columns: lane `j` of row `i` goes to lane `i` of row `j`.
///
/// # Safety
/// The processor has AVX2, and the caller is compiled for it.
#[inline(always)]
unsafe fn transposed8(rows: [__m256; 8]) -> [__m256; 8] {
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

impl Simd for Avx2 {
    type V = (__m256, __m256); // Lanes 0..8 and 8..16.
    const WIDE_TILES: bool = false;

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

impl Simd for Avx512 {
    type V = __m512;
    const WIDE_TILES: bool = true;

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
