//! Which processors give the same bits.

use cake_checkpoint::{Encoding, FloatType};

use super::gemm::case::{Case, RowClass};
use super::gemm::table::{BitClass, entry};
use super::gemm::weight::{Acts, Bits, CodeForm, WeightKind};
use super::isa::choice::chosen;
use super::isa::instructions::Isa;
use crate::error::Error;
use crate::options::{DeviceKind, Numerics, Precision};

/// What rows may be; the head sees all of them as generated.
const ROWS: [RowClass; 4] = [
    RowClass::Prefill(Precision::Bf16),
    RowClass::Prefill(Precision::Bf16Both),
    RowClass::Prefill(Precision::Bf16x2),
    RowClass::Decode,
];

/// How the matrices of a model are stored, as far as processors treat them differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MatrixKinds {
    /// Some are in bf16.
    pub bf16: bool,
    /// Some are packed: codes with a scale and a bias per group.
    pub packed: bool,
}

impl MatrixKinds {
    /// Counts matrices that are stored so.
    pub fn add(&mut self, encoding: Encoding) {
        match encoding {
            Encoding::Float(float) => self.bf16 |= float == FloatType::BF16,
            Encoding::Affine(format) => {
                self.packed |= Bits::of_affine(format.bits()).is_some();
            }
            // Whatever they are decoded or unpacked to, all processors compute alike.
            _ => {}
        }
    }
}

/// Name of the arithmetic of this process: that of the device that `CAKE_DEVICE` names.
///
/// # Errors
/// As [`arithmetic_of`], and as [`DeviceKind::from_env`].
pub fn arithmetic() -> Result<&'static str, Error> {
    arithmetic_of(DeviceKind::from_env()?)
}

/// Name of the arithmetic of a device: its own, or that of the processor as [`cpu_tier`](super::isa::choice::cpu_tier)
/// says, but `"avx512-bf16"` where that tier multiplies pairs of bf16, and `"portable-fused"` where plain code rounds once.
///
/// # Errors
/// As [`cpu_tier`](super::isa::choice::cpu_tier).
pub fn arithmetic_of(device: DeviceKind) -> Result<&'static str, Error> {
    match device {
        DeviceKind::Cpu => Ok(chosen()?.isa().arithmetic()),
        other => Ok(other.name()),
    }
}

/// Whether processes whose [`arithmetic`] is `one` and `other` compute the same with such matrices, to
/// the bit. A name that is not known agrees with itself alone.
pub fn same_bits(one: &str, other: &str, numerics: Numerics, kinds: MatrixKinds) -> bool {
    if one == other {
        return true;
    }
    let (Some(one), Some(other)) = (Isa::of_arithmetic(one), Isa::of_arithmetic(other)) else {
        return false;
    };
    // All that is not a product rounds as a multiply-add does.
    one.is_fused()
        && other.is_fused()
        && classes(one, numerics, kinds).eq(classes(other, numerics, kinds))
}

/// The bits of every product with such matrices, as the table has them.
fn classes(isa: Isa, numerics: Numerics, kinds: MatrixKinds) -> impl Iterator<Item = BitClass> {
    // Widths of codes, of groups and of activations decide no kernel.
    let packed = WeightKind::Affine(CodeForm { bits: Bits::Four, group: 64, acts: Acts::Words });
    let bf16 = WeightKind::Float(FloatType::BF16);
    let stored = [
        (true, WeightKind::Float(FloatType::F32)),
        (true, WeightKind::Float(FloatType::F16)),
        (kinds.bf16, bf16),
        (kinds.packed, packed),
    ];
    let weights = stored.into_iter().filter_map(|(there, weight)| there.then_some(weight));
    weights
        .flat_map(move |weight| ROWS.map(|rows| entry(&Case { isa, weight, rows, numerics }).bits))
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
