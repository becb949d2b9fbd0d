//! The vector tiers of x86-64. Values of [`Avx2`] and [`Avx512`] exist only where the processor
//! has their instructions, which is what makes the methods safe.

use crate::device::cpu::isa::simd::Kernel;

/// Wraps calls of intrinsics that need nothing but their instructions.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: `self` is made by `detect` alone, after the processor said it has these
        // instructions; loads and stores go through references to whole arrays.
        unsafe { $($body)* }
    }};
}

pub(super) use instructions;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The tier, if this processor has it.
    pub(crate) fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// Runs `kernel` with these instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
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
    pub(crate) fn detect() -> Option<Avx512> {
        let found = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        found.then_some(Avx512(()))
    }

    /// Runs `kernel` with these instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn compiled<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        instructions!(compiled(self, kernel))
    }
}

impl Avx512 {
    /// The tier below, which every such processor has: `detect` asks for both.
    pub(crate) fn avx2(self) -> Avx2 {
        Avx2(())
    }
}

/// Proof of AVX512-BF16 beside [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(());

impl Avx512 {
    /// Products of bf16 pairs, if this processor has them.
    pub(crate) fn bf16(self) -> Option<Avx512Bf16> {
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(()))
    }
}

/// Proof of AVX512-VNNI beside [`Avx512`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Vnni(());

impl Avx512 {
    /// Products of bytes, if this processor has them.
    pub(crate) fn vnni(self) -> Option<Avx512Vnni> {
        is_x86_feature_detected!("avx512vnni").then_some(Avx512Vnni(()))
    }
}
