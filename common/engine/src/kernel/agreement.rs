//! Which processors give the same bits.

use super::Tier;
use super::choice::chosen;
use super::simd::Portable;
use crate::error::Error;
use crate::options::Numerics;

/// Tiers that round once where they multiply and add, and no activation to bf16.
const FUSED: [&str; 4] = ["avx2", "avx512", "neon", "portable-fused"];
/// Those that do, beside weights in bf16, and else agree with them.
const PAIRS: [&str; 2] = ["avx512-bf16", "amx"];

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

/// Whether processes whose [`arithmetic`] is `one` and `other` compute the same, to the bit; `bf16`:
/// whether some matrices are stored so. A name that is not known agrees with itself alone.
pub fn same_bits(one: &str, other: &str, numerics: Numerics, bf16: bool) -> bool {
    let rounded = bf16 && numerics == Numerics::Fast;
    let alike = |name| FUSED.contains(&name) || (!rounded && PAIRS.contains(&name));
    one == other || (alike(one) && alike(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_bf16_set_processors_apart_and_rounding_twice_does_always() {
        let bf16 = |one, other| same_bits(one, other, Numerics::Fast, true);
        let packed = |one, other| same_bits(one, other, Numerics::Fast, false);
        let exact = |one, other| same_bits(one, other, Numerics::Exact, true);
        assert!(bf16("neon", "avx2") && bf16("avx512", "portable-fused") && bf16("amx", "amx"));
        assert!(!bf16("avx512-bf16", "avx512") && !bf16("amx", "neon"));
        assert!(packed("amx", "neon") && exact("amx", "neon"));
        assert!(!packed("portable", "neon") && !exact("portable", "neon") && !packed("", "avx2"));
        let own = arithmetic().unwrap();
        assert!(own == "portable" || packed(own, "neon"), "{own} is known");
    }
}
