//! Which levels codes name, and which weights share a scale.

use std::fmt;

/// Weights that blocks may have: what transformers asks for, and what it asked for on some devices.
const BLOCKS: [u16; 2] = [64, 128];

/// How the codes and scales of a matrix are stored.
///
/// A matrix `P` of `[rows, columns]` is `P.weight` U8 `[rows, columns / 2]`, of each byte first the upper half, and `P.scales`
/// F32 `[rows, columns / block]`. Nested, `P.scales` is U8, and beside it are `P.scale_scales` F32
/// `[⌈rows · columns / block / 256⌉]`, `P.scale_levels` F32 `[256]` and `P.scale_offset` F32 `[1]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bnb {
    levels: Levels,
    block: u16,
    is_nested: bool,
}

/// Which 16 levels there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Levels {
    /// Quantiles of a normal distribution.
    Nf4,
    /// Numbers of a sign, two bits of exponent and one of fraction.
    Fp4,
}

impl Bnb {
    /// Scales that share a scale of scales, counted from the matrix's first on, whichever rows they are of.
    pub const NESTED_BLOCK: u64 = 256;

    /// Blocks of so many weights; `None` for what is not supported.
    pub fn new(levels: Levels, block: u64, is_nested: bool) -> Option<Bnb> {
        let block = BLOCKS.into_iter().find(|&known| u64::from(known) == block)?;
        Some(Bnb { levels, block, is_nested })
    }

    /// All there are.
    pub(crate) fn all() -> impl Iterator<Item = Bnb> {
        let blocks = Levels::ALL.into_iter().flat_map(|it| BLOCKS.map(|block| (it, block)));
        blocks.flat_map(|(levels, block)| {
            [false, true].map(|is_nested| Bnb { levels, block, is_nested })
        })
    }

    /// Which levels its codes name.
    pub const fn levels(self) -> Levels {
        self.levels
    }

    /// Weights that share a scale.
    pub const fn block(self) -> usize {
        self.block as usize
    }

    /// Whether its scales are bytes with scales of their own.
    pub const fn is_nested(self) -> bool {
        self.is_nested
    }
}

impl fmt::Display for Bnb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nested = if self.is_nested { "-nested" } else { "" };
        f.pad(&format!("{}-{}{nested}", self.levels.name(), self.block))
    }
}

impl Levels {
    /// All of them.
    pub const ALL: [Levels; 2] = [Levels::Nf4, Levels::Fp4];

    /// Its name, as bitsandbytes has it.
    pub const fn name(self) -> &'static str {
        match self {
            Levels::Nf4 => "nf4",
            Levels::Fp4 => "fp4",
        }
    }

    /// The level of each code: those of `get_4bit_type` in bitsandbytes, to the bit.
    pub fn table(self) -> [f32; 16] {
        match self {
            Levels::Nf4 => [
                -1.0,
                -0.696_192_8,
                -0.525_073_05,
                -0.394_917_5,
                -0.284_441_38,
                -0.184_773_43,
                -0.091_050_036,
                0.0,
                0.079_580_3,
                0.160_930_2,
                0.246_112_3,
                0.337_915_24,
                0.440_709_83,
                0.562_617,
                0.722_956_84,
                1.0,
            ],
            // 12 is the largest of them.
            Levels::Fp4 => [
                0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0, 0.0, -0.0625, -8.0, -12.0, -4.0, -6.0,
                -2.0, -3.0,
            ]
            .map(|number: f32| number / 12.0),
        }
    }
}
