//! Which kinds of codes APR files have.

use std::fmt;

/// A kind of codes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AprType {
    /// 8 bits, one scale for all.
    Q8,
    /// 4 bits in blocks of 32, each with a scale.
    Q4,
}

impl AprType {
    /// Both.
    pub const ALL: [AprType; 2] = [AprType::Q8, AprType::Q4];
    /// Weights of a block of [`AprType::Q4`].
    pub const BLOCK: usize = 32;
    /// Bytes of such a block: a scale in f16, and codes.
    pub const BLOCK_BYTES: usize = 18;
    /// Bytes of the scale that comes before the codes of [`AprType::Q8`].
    pub const SCALE_BYTES: usize = 4;

    /// Its name in tags.
    pub const fn name(self) -> &'static str {
        match self {
            AprType::Q8 => "q8",
            AprType::Q4 => "q4",
        }
    }

    /// Bytes of so many weights in a file, scales included; the last block is filled up. `None` if they are too many.
    pub fn bytes(self, weights: u64) -> Option<u64> {
        match self {
            AprType::Q8 => weights.checked_add(Self::SCALE_BYTES as u64),
            AprType::Q4 => {
                weights.div_ceil(Self::BLOCK as u64).checked_mul(Self::BLOCK_BYTES as u64)
            }
        }
    }
}

impl fmt::Display for AprType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
