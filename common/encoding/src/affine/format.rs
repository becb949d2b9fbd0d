//! The grouped affine format: how many bits a code has and how many codes share a scale and a bias.

use std::fmt;

/// One grouped affine format: `weight = scale · code + bias`, codes unsigned, one scale and one bias
/// for each group of neighbours in a row.
///
/// A matrix `P` of `[rows, columns]` is three tensors, as MLX writes them: `P.weight` U32
/// `[rows, columns · bits / 32]`, the codes of a row as a little-endian bit stream; `P.scales` and
/// `P.biases` `[rows, columns / group]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Affine {
    bits: u8,
    group: u8,
}

impl Affine {
    /// Codes of 8 bits in groups of 64.
    pub const Q8: Affine = Affine { bits: 8, group: 64 };
    /// Codes of 6 bits in groups of 64.
    pub const Q6: Affine = Affine { bits: 6, group: 64 };
    /// Codes of 5 bits in groups of 64.
    pub const Q5: Affine = Affine { bits: 5, group: 64 };
    /// Codes of 4 bits in groups of 64.
    pub const Q4: Affine = Affine { bits: 4, group: 64 };
    /// Codes of 6 bits in groups of 32.
    pub const Q6_32: Affine = Affine { bits: 6, group: 32 };
    /// Codes of 5 bits in groups of 32.
    pub const Q5_32: Affine = Affine { bits: 5, group: 32 };
    /// Codes of 4 bits in groups of 32.
    pub const Q4_32: Affine = Affine { bits: 4, group: 32 };

    /// The format of `bits` (2, 3, 4, 5, 6 or 8) and `group` (32, 64 or 128); `None` for what is not supported.
    pub const fn new(bits: u64, group: u64) -> Option<Affine> {
        match (bits, group) {
            (2..=6 | 8, 32 | 64 | 128) => Some(Affine { bits: bits as u8, group: group as u8 }),
            _ => None,
        }
    }

    /// Bits of one code.
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Codes that share a scale and a bias.
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// The largest code.
    pub const fn largest_code(self) -> u8 {
        u8::MAX >> (8 - self.bits)
    }

    /// Bytes of the codes of one group.
    pub const fn group_bytes(self) -> usize {
        self.group() * self.bits() / 8
    }

    /// Shape of the packed codes (in words of 32 bits) and of the scales of a matrix of that shape;
    /// `None` when its rows are not whole groups.
    pub(super) fn packed_shapes(self, rows: u64, columns: u64) -> Option<(Vec<u64>, Vec<u64>)> {
        let group = self.group() as u64;
        // A group is a whole number of words: no code straddles two rows.
        let words = columns / group * (self.group_bytes() as u64 / 4);
        columns.is_multiple_of(group).then(|| (vec![rows, words], vec![rows, columns / group]))
    }
}

impl fmt::Display for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits in groups of {}", self.bits, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_the_sizes_of_mlx() {
        // The q_proj and down_proj of Qwen2.5-7B in 4 bits.
        assert_eq!(Affine::Q4.packed_shapes(3584, 3584), Some((vec![3584, 448], vec![3584, 56])));
        assert_eq!(Affine::Q4.packed_shapes(7, 18944), Some((vec![7, 2368], vec![7, 296])));
        let wide = Affine::new(8, 32).unwrap();
        assert_eq!(wide.packed_shapes(384, 128), Some((vec![384, 32], vec![384, 4])));
        assert_eq!(wide.packed_shapes(384, 48), None);
        assert_eq!((wide.largest_code(), Affine::Q4.largest_code()), (255, 15));
        let three = Affine::new(3, 32).unwrap();
        assert_eq!(three.packed_shapes(9, 96), Some((vec![9, 9], vec![9, 3])));
        assert_eq!(three.largest_code(), 7);
    }

    #[test]
    fn other_formats_are_none() {
        for (bits, group) in [(1, 64), (7, 64), (0, 64), (16, 64), (4, 16), (4, 256), (260, 64)] {
            assert_eq!(Affine::new(bits, group), None, "{bits} {group}");
        }
        assert_eq!(Affine::new(4, 64), Some(Affine::Q4));
        assert_eq!(Affine::Q8.to_string(), "8 bits in groups of 64");
    }
}
