//! The instructions that kernels are compiled for.

use super::instructions::Isa;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::simd::{Kernel, Portable};
#[cfg(target_arch = "x86_64")]
use super::x86;

/// The instructions that the kernels use, chosen once per process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tier {
    /// Plain Rust; also the oracle of the others.
    Portable(Portable),
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    /// AVX-512 (F, BW, DQ, VL).
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
    /// AVX-512 with BF16 and VNNI, and tile registers (AMX).
    #[cfg(target_arch = "x86_64")]
    Amx(x86::Amx),
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
}

impl Tier {
    /// Runs `kernel` compiled for this tier.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Tier::Portable(simd) => kernel.run(simd),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(simd) => simd.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Tier::Amx(amx) => amx.avx512().run(kernel),
            #[cfg(target_arch = "aarch64")]
            Tier::Neon(simd) => simd.run(kernel),
        }
    }

    /// Proof of AVX2, if this tier has it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn avx2(self) -> Option<x86::Avx2> {
        match self {
            Tier::Avx2(simd) => Some(simd),
            _ => Some(self.avx512()?.avx2()),
        }
    }

    /// Proof of AVX-512, if this tier has it.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn avx512(self) -> Option<x86::Avx512> {
        match self {
            Tier::Avx512(simd) => Some(simd),
            Tier::Amx(amx) => Some(amx.avx512()),
            _ => None,
        }
    }

    /// Every tier this processor has, the portable one first, the best one last.
    pub(crate) fn all() -> Vec<Tier> {
        let mut tiers = vec![Tier::Portable(Portable)];
        if cfg!(miri) {
            return tiers; // It runs plain Rust.
        }
        #[cfg(target_arch = "x86_64")]
        {
            tiers.extend(x86::Avx2::detect().map(Tier::Avx2));
            tiers.extend(x86::Avx512::detect().map(Tier::Avx512));
            tiers.extend(x86::Amx::detect().map(Tier::Amx));
        }
        #[cfg(target_arch = "aarch64")]
        tiers.extend(neon::Neon::detect().map(Tier::Neon));
        tiers
    }

    /// Those tiers of this processor that round once where they multiply and add.
    #[cfg(test)]
    pub(crate) fn fused() -> impl Iterator<Item = Tier> {
        Tier::all().into_iter().filter(|tier| tier.is_fused())
    }

    /// Whether it is one of those.
    #[cfg(test)]
    pub(crate) fn is_fused(self) -> bool {
        self.isa().is_fused()
    }

    /// The best tier of this processor.
    pub(crate) fn best() -> Tier {
        Tier::all().pop().unwrap_or(Tier::Portable(Portable))
    }

    /// What it is called.
    pub(crate) fn isa(self) -> Isa {
        match self {
            Tier::Portable(_) => Isa::Portable { fused: Portable::FUSED },
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx512(avx512) => {
                Isa::Avx512 { bf16: avx512.bf16().is_some(), vnni: avx512.vnni().is_some() }
            }
            #[cfg(target_arch = "x86_64")]
            Tier::Amx(_) => Isa::Amx,
            #[cfg(target_arch = "aarch64")]
            Tier::Neon(_) => Isa::Neon,
        }
    }

    /// Proof of tile registers, if this tier has them.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn amx(self) -> Option<x86::Amx> {
        match self {
            Tier::Amx(amx) => Some(amx),
            _ => None,
        }
    }
}
