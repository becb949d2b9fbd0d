//! The vector tier of AArch64: a vector is four registers. A value of [`Neon`] exists only where
//! the processor has the instructions, which is what makes the methods safe.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::device::cpu::isa::prefetch::{prefetch, prefetch_near};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd, TOGETHER};

/// Registers of a vector.
const PARTS: usize = LANES / 4;

/// Wraps calls of intrinsics that need nothing but their instructions.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: `self` is made by `detect` and `with_dots` alone, after the processor said it has these
        // instructions; loads and stores go through references to whole arrays, or to as many bytes as was asserted.
        unsafe { $($body)* }
    }};
}

/// Proof of NEON, and if `DOT`, of its dot products of bytes (FEAT_DotProd), which most processors have since 2018.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon<const DOT: bool = false>(());

impl Neon {
    /// The tier, if this processor has it.
    pub(crate) fn detect() -> Option<Neon> {
        // Numbers in memory are taken for little-endian ones.
        let found = std::arch::is_aarch64_feature_detected!("neon");
        (found && cfg!(target_endian = "little")).then_some(Neon(()))
    }

    /// The same with dot products of bytes, if this processor has them.
    pub(crate) fn with_dots(self) -> Option<Neon<true>> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }

    /// Runs `kernel` with these instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn compiled<K: Kernel>(simd: Neon, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }
}

impl Neon<true> {
    /// Runs `kernel` with these instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod")]
        fn compiled<K: Kernel>(simd: Neon<true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }
}

/// Lane by lane: the same instruction for each register.
macro_rules! each {
    ($part:ident => $value:expr) => {{
        instructions!({
            let mut all = [vdupq_n_f32(0.0); PARTS];
            for ($part, to) in all.iter_mut().enumerate() {
                *to = $value;
            }
            all
        })
    }};
}

impl<const DOT: bool> Simd for Neon<DOT> {
    type V = [float32x4_t; PARTS]; // Lanes 0..4, 4..8, 8..12 and 12..16.
    const WIDE_TILES: bool = false; // Of 32 registers a vector takes four.
    type Part = float32x4_t;
    const PARTS: usize = PARTS;
    const MANY_REGISTERS: bool = true;
    const DOTS_PACKED: bool = true;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::V {
        each!(_part => vdupq_n_f32(value))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::V {
        each!(part => vld1q_f32(from.as_ptr().add(4 * part)))
    }

    #[inline(always)]
    fn load_f32(self, from: &[u8; 64]) -> Self::V {
        each!(part => vreinterpretq_f32_u8(vld1q_u8(from.as_ptr().add(16 * part))))
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8; 32]) -> Self::V {
        each!(part => {
            let halves = vld1_u8(from.as_ptr().add(8 * part));
            let wide: float32x4_t;
            // Not every toolchain has the intrinsic; every processor has the instruction.
            asm!(
                "fcvtl {wide:v}.4s, {halves:v}.4h",
                wide = lateout(vreg) wide,
                halves = in(vreg) halves,
                options(pure, nomem, nostack), // A NaN that signals raises a flag.
            );
            wide
        })
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8; 32]) -> Self::V {
        each!(part => {
            let halves = vreinterpret_u16_u8(vld1_u8(from.as_ptr().add(8 * part)));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
        })
    }

    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u8; 64]) -> (Self::V, Self::V) {
        let even = each!(part => {
            let pairs = vreinterpretq_u32_u8(vld1q_u8(from.as_ptr().add(16 * part)));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))
        });
        let odd = each!(part => {
            let pairs = vreinterpretq_u32_u8(vld1q_u8(from.as_ptr().add(16 * part)));
            vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))
        });
        (even, odd)
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8; LANES]) -> Self::V {
        instructions!({
            let bytes = vld1q_s8(from.as_ptr().cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        })
    }

    #[inline(always)]
    fn load_part(self, from: &[f32; LANES], part: usize) -> Self::Part {
        instructions!(vld1q_f32(from.as_ptr().add(4 * (part % PARTS))))
    }

    #[inline(always)]
    fn store_part(self, value: Self::Part, to: &mut [f32; LANES], part: usize) {
        instructions!(vst1q_f32(to.as_mut_ptr().add(4 * (part % PARTS)), value))
    }

    #[inline(always)]
    fn mul_add_part(self, a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part {
        instructions!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn compiled<const DOT: bool, K: Kernel>(simd: Neon<DOT>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }

    #[inline(always)]
    fn store(self, value: Self::V, to: &mut [f32; LANES]) {
        for (part, to) in value.into_iter().zip(to.as_chunks_mut::<4>().0) {
            instructions!(vst1q_f32(to.as_mut_ptr(), part));
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vaddq_f32(a[part], b[part]))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vsubq_f32(a[part], b[part]))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vmulq_f32(a[part], b[part]))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vdivq_f32(a[part], b[part]))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each!(part => vfmaq_f32(c[part], a[part], b[part]))
    }

    // Selections, since this architecture's own largest and smallest treat NaN in another way.

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vbslq_f32(vcgtq_f32(a[part], b[part]), a[part], b[part]))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each!(part => vbslq_f32(vcltq_f32(a[part], b[part]), a[part], b[part]))
    }

    #[inline(always)]
    fn pow2_of_shifted(self, shifted: Self::V) -> Self::V {
        each!(part => {
            let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted[part]));
            vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(127 << 23)))
        })
    }

    #[inline(always)]
    fn sum(self, value: Self::V) -> f32 {
        instructions!({
            let low = vaddq_f32(value[0], value[2]);
            let high = vaddq_f32(value[1], value[3]);
            let four = vaddq_f32(low, high);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vpadds_f32(two)
        })
    }

    #[inline(always)]
    fn transpose(self, rows: [Self::V; LANES]) -> [Self::V; LANES] {
        let mut columns = rows;
        for i in 0..PARTS {
            for j in 0..PARTS {
                // The square of rows `4i..` and columns `4j..` goes to rows `4j..`.
                let mut square = [rows[0][0]; 4];
                for (k, to) in square.iter_mut().enumerate() {
                    *to = rows[4 * i + k][j];
                }
                let square = instructions!(transposed4(square));
                for (k, from) in square.into_iter().enumerate() {
                    columns[4 * j + k][i] = from;
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

    #[inline(always)]
    fn dots_packed<const N: usize, const BITS: usize>(
        self,
        codes: [&[u8]; TOGETHER],
        x: &[i16; N],
    ) -> [i32; TOGETHER] {
        const { assert!(N.is_multiple_of(32) || N == 16 && BITS != 4, "whole parts, in pairs") };
        let mut from = [std::ptr::null(); TOGETHER];
        for i in 0..TOGETHER {
            assert_eq!(codes[i].len(), if BITS == 4 { N / 2 } else { N }, "whole codes");
            from[i] = codes[i].as_ptr();
        }
        let mut dots = [0; TOGETHER];
        // All bytes are there. Only what is run by `Neon<true>`, which has them, is compiled for dot products of bytes.
        instructions!({
            let sums = match DOT {
                true => byte_dots::<N, BITS>(from, x.as_ptr()),
                false => word_dots::<N, BITS>(from, x.as_ptr()),
            };
            let pairs = [vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3])];
            vst1q_s32(dots.as_mut_ptr(), vpaddq_s32(pairs[0], pairs[1]));
        });
        dots
    }
}

/// Sixteen codes, a byte each, of part `part` of what lies at `codes`.
///
/// # Safety
/// They are there; the processor has NEON, and the caller is compiled for it.
#[inline(always)]
unsafe fn sixteen<const BITS: usize>(codes: *const u8, part: usize) -> uint8x16_t {
    // SAFETY: by the caller's promise.
    unsafe {
        match (BITS, part % 2) {
            (4, 0) => vandq_u8(vld1q_u8(codes.add(part / 2 * 16)), vdupq_n_u8(15)),
            (4, _) => vshrq_n_u8::<4>(vld1q_u8(codes.add(part / 2 * 16))),
            _ => vld1q_u8(codes.add(part * 16)),
        }
    }
}

/// Parts of 16 of so many codes. In pairs, so that it is known of each whether it has lower halves of bytes or upper ones.
macro_rules! each_part {
    ($n:ident, $part:ident => $body:block) => {
        for pair in 0..$n.div_ceil(32) {
            for half in 0..$n.min(32) / 16 {
                let $part = 2 * pair + half;
                $body
            }
        }
    };
}

/// Adds up products of codes, widened, and words: of each output in some lanes.
///
/// # Safety
/// There are `N` codes of `BITS` bits of each output, and `N` words, whole parts in pairs or one; the processor has NEON,
/// and the caller is compiled for it.
#[inline(always)]
unsafe fn word_dots<const N: usize, const BITS: usize>(
    codes: [*const u8; TOGETHER],
    x: *const i16,
) -> [int32x4_t; TOGETHER] {
    // SAFETY: by the caller's promise.
    unsafe {
        // Two accumulators each, because a multiply-add waits some cycles for the one before it.
        let mut sums = [[vdupq_n_s32(0); 2]; TOGETHER];
        each_part!(N, part => {
            let x = [vld1q_s16(x.add(16 * part)), vld1q_s16(x.add(16 * part + 8))];
            for i in 0..TOGETHER {
                let codes = sixteen::<BITS>(codes[i], part);
                let halves = [vmovl_u8(vget_low_u8(codes)), vmovl_high_u8(codes)];
                for half in 0..2 {
                    let wide = vreinterpretq_s16_u16(halves[half]);
                    let [low, high] = &mut sums[i];
                    *low = vmlal_s16(*low, vget_low_s16(wide), vget_low_s16(x[half]));
                    *high = vmlal_high_s16(*high, wide, x[half]);
                }
            }
        });
        let mut all = [vdupq_n_s32(0); TOGETHER];
        for i in 0..TOGETHER {
            all[i] = vaddq_s32(sums[i][0], sums[i][1]);
        }
        all
    }
}

/// Adds up products of codes and words, of which lower and upper bytes are multiplied apart.
///
/// # Safety
/// As of [`word_dots`]; the processor has dot products of bytes, too, and the caller is compiled for them.
#[inline(always)]
unsafe fn byte_dots<const N: usize, const BITS: usize>(
    codes: [*const u8; TOGETHER],
    x: *const i16,
) -> [int32x4_t; TOGETHER] {
    // SAFETY: by the caller's promise.
    unsafe {
        let zero = vdupq_n_u32(0);
        let (mut lower, mut upper, mut plain) = ([zero; TOGETHER], [zero; TOGETHER], zero);
        each_part!(N, part => {
            let uint8x16x2_t(low, high) = vld2q_u8(x.add(16 * part).cast());
            // Beside upper bytes, which have a sign, codes of 8 bits are 128 less: what they lack is that of these alone.
            if BITS == 8 {
                plain = sdot(plain, vdupq_n_u8(1), high);
            }
            for i in 0..TOGETHER {
                let codes = sixteen::<BITS>(codes[i], part);
                let signed = if BITS == 8 { veorq_u8(codes, vdupq_n_u8(128)) } else { codes };
                lower[i] = udot(lower[i], codes, low);
                upper[i] = sdot(upper[i], signed, high);
            }
        });
        let mut all = [vdupq_n_s32(0); TOGETHER];
        for i in 0..TOGETHER {
            // Modulo 2^32, in which the sum has room.
            let upper = vaddq_u32(upper[i], vshlq_n_u32::<7>(plain));
            all[i] = vreinterpretq_s32_u32(vaddq_u32(lower[i], vshlq_n_u32::<8>(upper)));
        }
        all
    }
}

/// Declares a dot product of four bytes in each lane, which not every toolchain has the intrinsic of.
macro_rules! dot_instructions {
    ($($name:ident: $doc:literal;)+) => {$(
        #[doc = $doc]
        ///
        /// # Safety
        /// The processor has the instruction, and the caller is compiled for it.
        #[inline(always)]
        unsafe fn $name(sum: uint32x4_t, a: uint8x16_t, b: uint8x16_t) -> uint32x4_t {
            let mut sum = sum;
            // SAFETY: by the caller's promise.
            unsafe {
                asm!(
                    concat!(stringify!($name), " {sum:v}.4s, {a:v}.16b, {b:v}.16b"),
                    sum = inout(vreg) sum,
                    a = in(vreg) a,
                    b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sum
        }
    )+};
}
dot_instructions! {
    udot: "`sum` and products of bytes without a sign.";
    sdot: "`sum` and products of bytes with a sign.";
}

/// Rows become columns.
///
/// # Safety
/// The processor has NEON, and the caller is compiled for it.
#[inline(always)]
unsafe fn transposed4(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: by the caller's promise.
    unsafe {
        // Even columns of two rows, then odd ones; after that, pairs of columns of two pairs of rows.
        let even = [vtrn1q_f32(rows[0], rows[1]), vtrn1q_f32(rows[2], rows[3])];
        let odd = [vtrn2q_f32(rows[0], rows[1]), vtrn2q_f32(rows[2], rows[3])];
        let [even, odd] = [even, odd].map(|pairs| pairs.map(|pair| vreinterpretq_f64_f32(pair)));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vtrn1q_f64(odd[0], odd[1])),
            vreinterpretq_f32_f64(vtrn2q_f64(even[0], even[1])),
            vreinterpretq_f32_f64(vtrn2q_f64(odd[0], odd[1])),
        ]
    }
}
