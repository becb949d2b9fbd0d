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

    /// The same, with products of bytes that are added up at once where this processor has such instructions; not in what
    /// [`Simd::apart`](super::simd::Simd::apart) runs.
    #[inline]
    pub(crate) fn run_dots<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "aarch64")]
        if let Tier::Neon(simd) = self
            && let Some(simd) = simd.with_dots()
        {
            return simd.run(kernel);
        }
        self.run(kernel)
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

#[cfg(test)]
mod tests {
    use super::super::packed::unpacked;
    use super::super::simd::{Simd, TOGETHER};
    use super::*;
    use crate::testing::Random;

    /// Both ways to add up products of `N` codes of each of some outputs.
    struct Dots<'a, const N: usize, const BITS: usize>([&'a [u8]; TOGETHER], &'a [i16; N]);

    impl<const N: usize, const BITS: usize> Kernel for Dots<'_, N, BITS> {
        type Output = [[i32; TOGETHER]; 2];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let wide = self.0.map(|codes| unpacked::<N, BITS>(codes).map(i16::from));
            let dots = wide.map(|codes| simd.dot(&codes, self.1));
            [dots, simd.dots_packed::<N, BITS>(self.0, self.1)]
        }
    }

    fn adds_up<const N: usize, const BITS: usize>() {
        let mut random = Random::new(62);
        for case in 0..50 {
            // The first ones are the largest there are, of either sign and of both.
            let mut below = |end: usize| if case < 3 { end - 1 } else { random.below(end) };
            let bytes = if BITS == 4 { N / 2 } else { N };
            let end = if BITS == 6 { 64 } else { 256 };
            let codes: [Vec<u8>; TOGETHER] =
                std::array::from_fn(|_| (0..bytes).map(|_| below(end) as u8).collect());
            let codes = codes.each_ref().map(Vec::as_slice);
            let x: [i16; N] = std::array::from_fn(|at| {
                let size = below(32_640) as i16;
                if case == 1 || case > 1 && (at + case) % 3 == 0 { -size } else { size }
            });
            let exact: [i32; TOGETHER] = codes.map(|codes| {
                let codes = unpacked::<N, BITS>(codes);
                codes.iter().zip(&x).map(|(code, x)| i32::from(*code) * i32::from(*x)).sum()
            });
            for tier in Tier::all() {
                let found = [
                    tier.run(Dots::<N, BITS>(codes, &x)),
                    tier.run_dots(Dots::<N, BITS>(codes, &x)),
                ];
                assert_eq!(found, [[exact; 2]; 2], "{tier:?}, {N} of {BITS} bits, case {case}");
            }
        }
    }

    #[test]
    fn every_tier_adds_up_products_of_whole_numbers() {
        adds_up::<32, 4>();
        adds_up::<64, 4>();
        adds_up::<128, 4>();
        adds_up::<16, 6>();
        adds_up::<32, 6>();
        adds_up::<64, 6>();
        adds_up::<128, 6>();
        adds_up::<16, 8>();
        adds_up::<32, 8>();
        adds_up::<64, 8>();
        adds_up::<128, 8>();
    }
}
