//! Tiles of bf16, and how many of them are computed together.

use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS};
use crate::device::cpu::isa::x86::{Amx, Line};

/// Inputs of one step: those of one row of a tile.
pub(crate) const STEP: usize = LINE / 2;
/// Outputs computed together: two tiles.
pub(crate) const STRIP: usize = 2 * TILE_ROWS;
/// Rows computed together: two tiles.
pub(crate) const PAIR: usize = 2 * TILE_ROWS;
/// Lines of the weights of one strip and one step.
pub(crate) const STRIP_LINES: usize = 2 * TILE_ROWS;

/// A tile in memory.
pub(crate) type Tile = [Line; TILE_ROWS];

/// Bytes of one row of so many inputs as tiles.
pub(crate) fn row_bytes(inputs: u64) -> u64 {
    // Four bytes per input: a bf16 in each plane.
    inputs.div_ceil(STEP as u64).saturating_mul(4 * STEP as u64)
}

/// Proof of the instructions.
pub(crate) fn proof(tier: Tier) -> Amx {
    tier.amx().expect("the table gives these kernels to processors with tile registers")
}
