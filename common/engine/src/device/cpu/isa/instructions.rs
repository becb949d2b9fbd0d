//! The instructions of processors, by name: of this one, and of others that take part in a plan.

/// What a processor computes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Isa {
    /// Plain Rust; `fused` where the compiler has an instruction that multiplies and adds with one rounding.
    Portable { fused: bool },
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL), perhaps with dot products of bf16 pairs (BF16) and of bytes (VNNI).
    Avx512 { bf16: bool, vnni: bool },
    /// AVX-512 with both of these, and tile registers (AMX).
    Amx,
    /// NEON.
    Neon,
}

impl Isa {
    /// One for each arithmetic that has a name.
    const ALL: [Isa; 7] = [
        Isa::Portable { fused: false },
        Isa::Portable { fused: true },
        Isa::Avx2,
        Isa::Avx512 { bf16: false, vnni: false },
        Isa::Avx512 { bf16: true, vnni: true },
        Isa::Amx,
        Isa::Neon,
    ];

    /// As `CAKE_CPU` names it.
    pub(crate) fn tier(self) -> &'static str {
        match self {
            Isa::Portable { .. } => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 { .. } => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
        }
    }

    /// As workers name their arithmetic: [`Isa::tier`], and apart from that what changes bits.
    pub(crate) fn arithmetic(self) -> &'static str {
        match self {
            Isa::Portable { fused: true } => "portable-fused",
            Isa::Avx512 { bf16: true, .. } => "avx512-bf16",
            other => other.tier(),
        }
    }

    /// The instructions whose [`Isa::arithmetic`] has this name, if it is known; where several have it, they give the
    /// same bits.
    pub(crate) fn of_arithmetic(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.arithmetic() == name)
    }

    /// Whether a value of `CAKE_CPU` names a tier.
    pub(crate) fn is_tier(name: &str) -> bool {
        Isa::ALL.iter().any(|isa| isa.tier() == name)
    }

    /// Whether a multiply-add rounds once.
    pub(crate) fn is_fused(self) -> bool {
        self != Isa::Portable { fused: false }
    }
}
