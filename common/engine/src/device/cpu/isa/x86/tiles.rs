//! Tile registers (AMX), as memory and instructions see them.
//!
//! The instructions come as inline assembly: their intrinsics are not stable in Rust.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::amx::Amx;
use super::line::{Line, transposed};
use crate::device::cpu::isa::simd::LANES;

/// Instructions on tile registers, whose rows lie `s` bytes apart in memory. Nothing else uses the
/// registers, so they keep what they hold from one use to the next.
macro_rules! tile {
    ($($line:literal),+; $($name:ident = $value:expr),*) => {
        std::arch::asm!(
            $($line,)+
            $($name = in(reg) $value,)*
            s = in(reg) size_of::<$crate::device::cpu::isa::x86::Line>(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags),
        )
    };
}
pub(crate) use tile;

/// Bytes of one row of a tile.
pub(crate) const LINE: usize = size_of::<Line>();
/// Rows of a tile: outputs of weights and of accumulators; of activations 4 bytes of inputs each, in as many columns,
/// which are rows of prefill or of decode.
pub(crate) const TILE_ROWS: usize = LANES;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tile registers of this thread, of which 0 to 3 are accumulators, 4 and 5 weights, 6 and 7 activations;
/// given back when it is dropped, so that the system need not save them.
pub(crate) struct Tiles {
    weight_bytes: usize,
    column_bytes: usize,
}

impl Tiles {
    /// Weights have so many bytes in a row of a tile, [`LINE`] at most, and activations as many
    /// rows as go with them.
    pub(crate) fn new(proof: Amx, weight_bytes: usize) -> Tiles {
        Tiles::narrow(proof, weight_bytes, LINE)
    }

    /// The same, with fewer columns of activations and of accumulators, of four bytes each.
    pub(crate) fn narrow(_: Amx, weight_bytes: usize, column_bytes: usize) -> Tiles {
        assert!(matches!(weight_bytes, 32 | LINE), "half or whole tiles");
        assert!(column_bytes.is_multiple_of(4) && (4..=LINE).contains(&column_bytes), "columns");
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(column_bytes as u16);
        config.rows[..8].fill(TILE_ROWS as u8);
        config.row_bytes[4..6].fill(weight_bytes as u16);
        config.rows[6..8].fill((weight_bytes / 4) as u8);
        // SAFETY: there is a proof of the instructions; it reads the 64 bytes of a valid
        // configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Tiles { weight_bytes, column_bytes }
    }
}

impl Tiles {
    /// Bytes in a row of a tile of weights, and in one of activations or accumulators.
    #[inline(always)]
    pub(crate) fn row_bytes(&self) -> (usize, usize) {
        (self.weight_bytes, self.column_bytes)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles exist only where there are the instructions.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sets all four tiles of accumulators to zero.
#[inline(always)]
pub(crate) fn zero(_: &Tiles) {
    // SAFETY: there are tile registers, and nothing else is touched.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nostack, nomem, preserves_flags),
        );
    }
}

/// Rows become columns: 16 rows of 16 words of 32 bits each, a tile.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transpose_into(rows: [__m512i; LANES], tile: &mut MaybeUninit<[Line; TILE_ROWS]>) {
    // SAFETY: this function has the instructions.
    let columns = unsafe { transposed(rows) };
    for (index, column) in columns.into_iter().enumerate() {
        // SAFETY: the tile has sixteen lines, which are aligned vectors.
        unsafe { _mm512_store_si512(tile.as_mut_ptr().cast::<__m512i>().add(index), column) };
    }
}
