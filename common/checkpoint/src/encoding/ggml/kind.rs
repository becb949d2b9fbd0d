//! Which kinds of blocks there are.

use std::fmt;

/// A kind of block, by the name that ggml gives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GgmlType {
    /// 32 codes of 8 bits with a scale.
    Q8_0,
    /// 32 codes of 4 bits with a scale.
    Q4_0,
    /// 256 codes of 4 bits; each 32 have a scale and a minimum, of 6 bits.
    Q4K,
    /// 256 codes of 6 bits; each 16 have a scale, of 8 bits.
    Q6K,
}

impl GgmlType {
    /// Every kind that is decoded.
    pub const ALL: [GgmlType; 4] = [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4K, GgmlType::Q6K];

    /// Its name in tags, in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            GgmlType::Q8_0 => "q8_0",
            GgmlType::Q4_0 => "q4_0",
            GgmlType::Q4K => "q4_k",
            GgmlType::Q6K => "q6_k",
        }
    }

    /// Weights in a block.
    pub const fn block(self) -> usize {
        match self {
            GgmlType::Q8_0 | GgmlType::Q4_0 => 32,
            GgmlType::Q4K | GgmlType::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            GgmlType::Q8_0 => 34,
            GgmlType::Q4_0 => 18,
            GgmlType::Q4K => 144,
            GgmlType::Q6K => 210,
        }
    }

    /// Bytes of so many weights; `None` if they are not whole blocks, or too many.
    pub fn bytes(self, weights: u64) -> Option<u64> {
        let block = self.block() as u64;
        let whole = weights.is_multiple_of(block).then_some(weights / block)?;
        whole.checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
