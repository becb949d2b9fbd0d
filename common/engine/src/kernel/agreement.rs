//! Which processors give the same bits.

use cake_checkpoint::Dtype;

use super::Tier;
use super::choice::chosen;
use crate::error::Error;
use crate::options::WeightEncoding;

/// Name of the arithmetic of this process: as [`cpu_tier`](super::cpu_tier) says, or `"avx512-bf16"`
/// where that tier multiplies pairs of bf16.
///
/// # Errors
/// As [`cpu_tier`](super::cpu_tier).
pub fn arithmetic() -> Result<&'static str, Error> {
    Ok(match chosen()? {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512(avx512) if avx512.bf16().is_some() => "avx512-bf16",
        tier => tier.name(),
    })
}

/// Whether processes whose [`arithmetic`] is `one` and `other` compute the same, to the bit, beside
/// such weights and by default. A name that is not known agrees with itself alone.
pub fn same_bits(one: &str, other: &str, weights: WeightEncoding) -> bool {
    /// Those that round once where they multiply and add.
    const FUSED: [&str; 5] = ["avx2", "avx512", "neon", "avx512-bf16", "amx"];
    let alike = match weights {
        WeightEncoding::Float(Dtype::BF16) => &FUSED[..3],
        _ => &FUSED[..],
    };
    one == other || (alike.contains(&one) && alike.contains(&other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_bf16_set_processors_apart_and_rounding_twice_does_always() {
        let bf16 = WeightEncoding::Float(Dtype::BF16);
        let packed: WeightEncoding = "affine-4-64".parse().unwrap();
        assert!(same_bits("neon", "avx2", bf16) && same_bits("avx512", "neon", bf16));
        assert!(!same_bits("avx512-bf16", "avx512", bf16) && !same_bits("amx", "neon", bf16));
        assert!(same_bits("amx", "neon", packed) && same_bits("amx", "amx", bf16));
        assert!(!same_bits("portable", "neon", packed) && !same_bits("", "avx2", packed));
        let own = arithmetic().unwrap();
        assert!(own == "portable" || same_bits(own, "neon", packed), "{own} is known");
    }
}
