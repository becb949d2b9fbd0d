//! The vector tiers of x86-64. Values of [`Avx2`] and [`Avx512`] exist only where the processor
//! has their instructions, which is what makes the methods safe.

mod amx;
mod avx2;
mod avx512;
mod line;
pub(crate) mod pairs;
pub(crate) mod tiles;

#[cfg(not(miri))]
use std::arch::asm;

pub(crate) use self::amx::Amx;
pub(crate) use self::line::{Line, read_bytes, transposed};
use crate::device::cpu::isa::simd::Kernel;

/// Wraps calls of intrinsics that need nothing but their instructions.
macro_rules! instructions {
    ($($body:tt)*) => {{
        // SAFETY: `self` is made by `detect` alone, after the processor said it has these
        // instructions; loads and stores go through references to whole arrays.
        unsafe { $($body)* }
    }};
}

use instructions;

/// Asks for the cache line at `address`, which need not be valid: into the second-level cache,
/// which waits for more lines at a time than the first.
///
/// Written out, because the compiler gathers the intrinsic's calls, and requests that come many
/// at a time hold up the loads behind them.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(not(miri))] // Miri runs no assembly.
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        asm!("prefetcht1 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(miri)]
    let _ = address;
}

/// Asks for the cache line at `address`, which need not be valid, from the second-level cache into
/// the first: a load that has to wait for it holds one of the few places that lines on their way from
/// memory need.
#[inline(always)]
pub(crate) fn prefetch_near(address: *const u8) {
    #[cfg(not(miri))] // Miri runs no assembly.
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
    }
    #[cfg(miri)]
    let _ = address;
}

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
