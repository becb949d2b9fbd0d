//! Which formats of whole numbers there are.

use std::fmt;

/// One format of whole numbers: `weight = scale · (code - zero)`, codes unsigned, one scale and one zero point for each
/// group of neighbours in a row.
///
/// A matrix `P` of `[rows, columns]` is these tensors:
/// - `P.weight` U32 `[rows, columns · bits / 32]`: the codes of a row as a little-endian bit stream;
/// - `P.scales` F32, F16 or BF16 `[rows, groups]`;
/// - `P.zeros` U8 `[rows, ⌈groups · bits / 8⌉]`, unless all are [`Zero::Middle`]: the zero points as files have them, of 4
///   bits two to a byte, the first in the lower half. A whole byte for each would make a matrix in groups of 32 larger than
///   its file is by a fortieth, and 16, which four bits do not say, is what [`Zero::OneMore`] is for;
/// - `P.groups` U32 `[columns]`, if it is [`Order::Chosen`]: the group of each column, the same for all rows.
///
/// The formats are those of GPTQ's and AWQ's files and of `pack-quantized` of compressed-tensors, whose own ways to
/// pack are undone where they are read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Integer {
    bits: u8,
    /// 0 for all of a row.
    group: u8,
    zero: Zero,
    order: Order,
}

/// What codes are counted from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Zero {
    /// The middle of all codes: 8 or 128.
    Middle,
    /// What is stored for the group,
    Stored,
    /// or one more.
    OneMore,
}

/// Which columns a group has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Neighbours.
    Neighbours,
    /// Those that say so: whoever packed the matrix took its columns in an order of its own.
    Chosen,
}

/// Codes that share a scale; 0 for all of a row.
const GROUPS: [u8; 4] = [32, 64, 128, 0];

impl Integer {
    /// The format of `bits` (4 or 8) and `group` (32, 64, 128, or none for one group that is the row, which has no order);
    /// `None` for what is not supported.
    pub fn new(bits: u64, group: Option<u64>, zero: Zero, order: Order) -> Option<Integer> {
        let group = group.map_or(Some(0), |group| u8::try_from(group).ok().filter(|it| *it > 0))?;
        let bits = u8::try_from(bits).ok().filter(|bits| matches!(bits, 4 | 8))?;
        let is_one = GROUPS.contains(&group) && (group > 0 || order == Order::Neighbours);
        is_one.then_some(Integer { bits, group, zero, order })
    }

    /// Every format.
    pub fn all() -> impl Iterator<Item = Integer> {
        let zeros = [Zero::Middle, Zero::Stored, Zero::OneMore];
        let orders = [Order::Neighbours, Order::Chosen];
        let bits = [4, 8].into_iter();
        let kinds =
            bits.flat_map(move |bits| zeros.map(|zero| orders.map(|order| (bits, zero, order))));
        kinds.flatten().flat_map(|(bits, zero, order)| {
            let group = |group| (group > 0).then_some(u64::from(group));
            GROUPS.into_iter().filter_map(move |it| Integer::new(bits, group(it), zero, order))
        })
    }

    /// Bits of one code.
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Codes that share a scale; `None` if those of a row do.
    pub const fn group(self) -> Option<usize> {
        match self.group {
            0 => None,
            group => Some(group as usize),
        }
    }

    /// What codes are counted from.
    pub const fn zero(self) -> Zero {
        self.zero
    }

    /// Which columns a group has.
    pub const fn order(self) -> Order {
        self.order
    }

    /// How many groups a row of so many codes has, of which the last may be shorter; `None` if its codes are no whole words.
    pub fn groups(self, columns: u64) -> Option<u64> {
        let group = self.group().map_or(columns, |group| group as u64).max(1);
        columns.is_multiple_of(32 / self.bits() as u64).then_some(columns.div_ceil(group))
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.group().map_or("row".to_owned(), |group| group.to_string());
        let zero = match self.zero {
            Zero::Middle => "",
            Zero::Stored => "-zeros",
            Zero::OneMore => "-zeros+1",
        };
        let order = match self.order {
            Order::Neighbours => "",
            Order::Chosen => "-ordered",
        };
        f.pad(&format!("{}-{group}{zero}{order}", self.bits))
    }
}
