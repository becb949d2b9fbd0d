//! Which kinds of blocks there are.

use std::fmt;

/// A kind of block, by the name that ggml gives it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GgmlType {
    /// 32 codes of 4 bits with a scale.
    Q4_0,
    /// 32 codes of 4 bits with a scale and a minimum.
    Q4_1,
    /// 32 codes of 5 bits with a scale.
    Q5_0,
    /// 32 codes of 5 bits with a scale and a minimum.
    Q5_1,
    /// 32 codes of 8 bits with a scale.
    Q8_0,
    /// 256 codes of 2 bits; each 16 have a scale and a minimum, of 4 bits.
    Q2K,
    /// 256 codes of 3 bits; each 16 have a scale, of 6 bits.
    Q3K,
    /// 256 codes of 4 bits; each 32 have a scale and a minimum, of 6 bits.
    Q4K,
    /// 256 codes of 5 bits; each 32 have a scale and a minimum, of 6 bits.
    Q5K,
    /// 256 codes of 6 bits; each 16 have a scale, of 8 bits.
    Q6K,
    /// 32 codes of 4 bits, which are places in a table, with a scale.
    Iq4Nl,
    /// 256 codes of 4 bits, which are places in the same table; each 32 have a scale, of 6 bits.
    Iq4Xs,
    /// 32 numbers of 4 bits with a scale that is a power of two.
    Mxfp4,
}

/// What is fixed for a kind.
struct Facts {
    name: &'static str,
    id: u32,
    block: usize,
    block_bytes: usize,
}

/// Kinds that ggml has, too, and nothing here decodes, by the number of their type: refusals name them.
const OTHERS: [(u32, &str); 14] = [
    (9, "q8_1"),
    (15, "q8_k"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (29, "iq1_m"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (40, "nvfp4"),
    (41, "q1_0"),
    (42, "q2_0"),
];

impl GgmlType {
    /// Every kind that is decoded.
    pub const ALL: [GgmlType; 13] = [
        GgmlType::Q8_0,
        GgmlType::Q4_0,
        GgmlType::Q4K,
        GgmlType::Q6K,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q2K,
        GgmlType::Q3K,
        GgmlType::Q5K,
        GgmlType::Iq4Nl,
        GgmlType::Iq4Xs,
        GgmlType::Mxfp4,
    ];

    const fn facts(self) -> Facts {
        let (name, id, block, block_bytes) = match self {
            GgmlType::Q4_0 => ("q4_0", 2, 32, 18),
            GgmlType::Q4_1 => ("q4_1", 3, 32, 20),
            GgmlType::Q5_0 => ("q5_0", 6, 32, 22),
            GgmlType::Q5_1 => ("q5_1", 7, 32, 24),
            GgmlType::Q8_0 => ("q8_0", 8, 32, 34),
            GgmlType::Q2K => ("q2_k", 10, 256, 84),
            GgmlType::Q3K => ("q3_k", 11, 256, 110),
            GgmlType::Q4K => ("q4_k", 12, 256, 144),
            GgmlType::Q5K => ("q5_k", 13, 256, 176),
            GgmlType::Q6K => ("q6_k", 14, 256, 210),
            GgmlType::Iq4Nl => ("iq4_nl", 20, 32, 18),
            GgmlType::Iq4Xs => ("iq4_xs", 23, 256, 136),
            GgmlType::Mxfp4 => ("mxfp4", 39, 32, 17),
        };
        Facts { name, id, block, block_bytes }
    }

    /// The kind with that number of a type, as GGUF files have them; `None` for what is no kind of block, and for those that are not
    /// decoded ([`GgmlType::name_of_other`]).
    pub fn of_id(id: u32) -> Option<GgmlType> {
        GgmlType::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// The name of a kind of block that ggml has under that number, and that is not decoded.
    pub fn name_of_other(id: u32) -> Option<&'static str> {
        OTHERS.into_iter().find(|(other, _)| *other == id).map(|(_, name)| name)
    }

    /// Its name in tags, in small letters.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// The number of its type, as GGUF files have it.
    pub const fn id(self) -> u32 {
        self.facts().id
    }

    /// Weights in a block.
    pub const fn block(self) -> usize {
        self.facts().block
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().block_bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_one_kind() {
        for kind in GgmlType::ALL {
            assert_eq!(GgmlType::of_id(kind.id()), Some(kind));
            assert_eq!(GgmlType::name_of_other(kind.id()), None);
            assert!(
                GgmlType::ALL.into_iter().filter(|other| other.name() == kind.name()).count() == 1
            );
        }
        // Plain numbers, and what nobody has given a meaning to yet.
        for id in [0, 1, 24, 28, 30, 5, 99, u32::MAX] {
            assert_eq!((GgmlType::of_id(id), GgmlType::name_of_other(id)), (None, None));
        }
        assert_eq!(GgmlType::name_of_other(29), Some("iq1_m"));
    }
}
