//! Tiles of bytes: their size, and codes on their way into them.

use std::arch::x86_64::*;

use crate::device::cpu::gemm::weight::Bits;
use crate::device::cpu::isa::x86::tiles::TILE_ROWS;
use crate::device::cpu::isa::x86::{Line, read_bytes};

/// Codes of one step: those of one row of a tile.
pub(crate) const STEP: usize = 64;
/// Tiles of outputs computed together: so many that products of one are on their way while those of
/// the other are stored.
pub(crate) const STRIP: usize = 2;
/// A tile in memory.
pub(crate) type Tile = [Line; TILE_ROWS];

/// Codes as bytes, in the order of [`Activations`](super::super::activations::Activations); the rest of the line is zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(crate) fn widen(bits: Bits, codes: &[u8], line: &mut Line) {
    let codes = read_bytes(codes);
    line.write(match bits {
        Bits::Six | Bits::Eight => codes,
        Bits::Four => {
            // 16 bytes are 32 codes: 16 low halves, then 16 high ones.
            let low = _mm512_set1_epi8(0xf);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
            let order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            _mm512_permutex2var_epi64(_mm512_and_si512(codes, low), order, high)
        }
    });
}
