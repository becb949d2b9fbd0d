//! Products on processors with tile registers (AMX), which multiply 16 × 16 blocks.
//!
//! Weights are the left operand, 16 outputs of one tile each, which is how they lie in memory:
//! nothing is transposed but the activations, once for all outputs. A block of the result has its
//! outputs in rows. Beside many rows of activations, weights of some outputs are copied next to each
//! other into a cache, where all rows pass over them, while those before are multiplied.
//!
//! An activation of 16 bits is two planes of 8 significant bits each (`float`) or of 8 bits (`affine`),
//! so that the product is as good as one of f32 to within a few 2^-17 of its terms; one plane of
//! `float` leaves a few 2^-9.
//!
//! The instructions come as inline assembly: their intrinsics are not stable in Rust.

mod ahead;
mod float;

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::{Amx, Line, transposed};
pub(super) use ahead::Ahead;
pub(super) use float::{
    Activations, FewActivations, Weights, few_float_matmul, float_matmul, product_bytes,
};

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
pub(super) use tile;

/// Bytes of one row of a tile.
const LINE: usize = size_of::<Line>();
/// Rows of a tile, which are outputs of weights and prompt rows of activations.
pub(super) const TILE_ROWS: usize = LANES;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tile registers of this thread, of which 0 to 3 hold sums, 4 and 5 weights, 6 and 7 activations;
/// given back when it is dropped, so that the system need not save them.
pub(super) struct Tiles {
    weight_bytes: usize,
    column_bytes: usize,
}

impl Tiles {
    /// Weights have so many bytes in a row of a tile, [`LINE`] at most, and activations as many
    /// rows as go with them.
    pub(super) fn new(proof: Amx, weight_bytes: usize) -> Tiles {
        Tiles::narrow(proof, weight_bytes, LINE)
    }

    /// The same, with fewer columns of activations and of sums, of four bytes each.
    pub(super) fn narrow(_: Amx, weight_bytes: usize, column_bytes: usize) -> Tiles {
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
    /// Bytes in a row of a tile of weights, and in one of activations or sums.
    #[inline(always)]
    pub(super) fn row_bytes(&self) -> (usize, usize) {
        (self.weight_bytes, self.column_bytes)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles exist only where there are the instructions.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sets all four tiles of sums to zero.
#[inline(always)]
pub(super) fn zero(_: &Tiles) {
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
pub(super) fn transpose_into(rows: [__m512i; LANES], tile: &mut MaybeUninit<[Line; TILE_ROWS]>) {
    // SAFETY: this function has the instructions.
    let columns = unsafe { transposed(rows) };
    for (index, column) in columns.into_iter().enumerate() {
        // SAFETY: the tile has sixteen lines, which are aligned vectors.
        unsafe { _mm512_store_si512(tile.as_mut_ptr().cast::<__m512i>().add(index), column) };
    }
}

/// Where finished sums go.
pub(super) struct Finish<'a> {
    /// One element per output of the whole matrix.
    pub(super) bias: Option<&'a [f32]>,
    /// `[rows, outputs]`.
    pub(super) target: Target<'a>,
}

impl Finish<'_> {
    /// Writes a tile of sums, whose lines are `outputs` and whose lanes are `rows`, 16 of each at
    /// most.
    ///
    /// # Safety
    /// Nobody else has these elements.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn write(
        &self,
        sums: &[Line; TILE_ROWS],
        outputs: Range<usize>,
        rows: Range<usize>,
    ) {
        if rows.is_empty() || outputs.is_empty() {
            return;
        }
        let mut square = [_mm512_setzero_si512(); LANES];
        for (vector, line) in square.iter_mut().zip(sums) {
            *vector = line.read();
        }
        // SAFETY: this function has the instructions.
        let square = unsafe { transposed(square) };
        let mask = u16::MAX >> (TILE_ROWS - outputs.len());
        for (row, sums) in rows.zip(square) {
            let mut sums = _mm512_castsi512_ps(sums);
            if let Some(bias) = self.bias {
                let bias = bias[outputs.clone()].as_ptr();
                // SAFETY: a masked load touches the elements of the slice alone.
                sums = _mm512_add_ps(sums, unsafe { _mm512_maskz_loadu_ps(mask, bias) });
            }
            // SAFETY: the caller's promise; this holds one part at a time.
            let to = unsafe { self.target.part(row, outputs.start, outputs.len()) };
            // SAFETY: a masked store touches the elements of the slice alone.
            unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr().cast(), mask, sums) };
        }
    }
}
