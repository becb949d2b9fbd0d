//! Which processors give the same bits.

use crate::device::cpu::isa::choice::chosen;
use crate::device::cpu::isa::simd::Portable;
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::options::Numerics;

/// Tiers that round once where they multiply and add, and nothing to bf16.
const FUSED: [&str; 4] = ["avx2", "avx512", "neon", "portable-fused"];
/// Agrees with them but beside matrices in bf16, where it rounds activations.
const PAIRS: &str = "avx512-bf16";
/// Agrees with them but beside matrices in bf16 and packed ones, which it rounds, too.
const TILES: &str = "amx";

/// How the matrices of a model are stored, as far as processors treat them differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MatrixKinds {
    /// Some are in bf16.
    pub bf16: bool,
    /// Some are packed: codes with a scale and a bias per group.
    pub packed: bool,
}

/// Name of the arithmetic of this process: as [`cpu_tier`](super::cpu_tier) says, but
/// `"avx512-bf16"` where that tier multiplies pairs of bf16, and `"portable-fused"` where plain code
/// rounds once.
///
/// # Errors
/// As [`cpu_tier`](super::cpu_tier).
pub fn arithmetic() -> Result<&'static str, Error> {
    Ok(match chosen()? {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512(avx512) if avx512.bf16().is_some() => "avx512-bf16",
        Tier::Portable(_) if Portable::FUSED => "portable-fused",
        tier => tier.name(),
    })
}

/// Whether processes whose [`arithmetic`] is `one` and `other` compute the same with such matrices, to
/// the bit. A name that is not known agrees with itself alone.
pub fn same_bits(one: &str, other: &str, numerics: Numerics, kinds: MatrixKinds) -> bool {
    let MatrixKinds { bf16, packed } = kinds;
    let fast = numerics == Numerics::Fast;
    let alike = |name: &str| match name {
        PAIRS => !(fast && bf16),
        TILES => !(fast && (bf16 || packed)),
        name => FUSED.contains(&name),
    };
    one == other || (alike(one) && alike(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_sets_processors_apart_and_rounding_twice_does_always() {
        let kinds = |bf16, packed| MatrixKinds { bf16, packed };
        let bf16 = |one, other| same_bits(one, other, Numerics::Fast, kinds(true, false));
        let packed = |one, other| same_bits(one, other, Numerics::Fast, kinds(false, true));
        let float = |one, other| same_bits(one, other, Numerics::Fast, kinds(false, false));
        let exact = |one, other| same_bits(one, other, Numerics::Exact, kinds(true, true));
        assert!(bf16("neon", "avx2") && bf16("avx512", "portable-fused") && bf16("amx", "amx"));
        assert!(
            !bf16("avx512-bf16", "avx512") && !bf16("amx", "neon") && !bf16("amx", "avx512-bf16")
        );
        assert!(packed("avx512-bf16", "neon") && !packed("amx", "neon") && packed("amx", "amx"));
        assert!(float("amx", "neon") && exact("amx", "neon") && exact("avx512-bf16", "amx"));
        assert!(!packed("portable", "neon") && !exact("portable", "neon") && !packed("", "avx2"));
        let own = arithmetic().unwrap();
        assert!(own == "portable" || float(own, "neon"), "{own} is known");
    }
}
