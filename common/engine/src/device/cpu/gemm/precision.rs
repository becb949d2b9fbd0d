//! How many bits of activations products take.

/// How many bits of an activation of a prompt a product takes, where the processor multiplies pairs of
/// bf16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Precision {
    /// The activation is rounded to bf16: 8 significant bits.
    Bf16,
    /// The activation is rounded to bf16, and so are packed weights.
    Bf16Both,
    /// The activation is the sum of two bf16: 16 significant bits, in twice the time.
    Bf16x2,
}

#[cfg(target_arch = "x86_64")]
impl Precision {
    /// How many bf16 an activation is.
    pub(crate) fn planes(self) -> usize {
        match self {
            Precision::Bf16 | Precision::Bf16Both => 1,
            Precision::Bf16x2 => 2,
        }
    }
}
