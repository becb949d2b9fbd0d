//! Activations as tiles of bf16.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::shape::{PAIR, STEP, Tile};
use crate::device::cpu::isa::x86::Amx;
use crate::device::cpu::isa::x86::pairs::split_pairs;
use crate::device::cpu::isa::x86::tiles::{TILE_ROWS, transpose_into};
use crate::device::cpu::pool::for_each_mut;
use crate::options::Precision;

/// Rows of activations as tiles: `[pair of row tiles, step, plane, tile of the pair]`, where a
/// line of a tile has a pair of inputs of 16 rows. Rows and inputs past the end are zero; a last
/// pair has both tiles.
pub(crate) struct Activations {
    pub(super) tiles: Vec<Tile>,
    pub(super) rows: usize,
    pub(super) steps: usize,
    pub(super) precision: Precision,
}

impl Activations {
    pub(super) fn split(
        proof: Amx,
        precision: Precision,
        x: &[f32],
        inputs: usize,
        parallel: bool,
    ) -> Activations {
        let (rows, steps) = (x.len() / inputs, inputs.div_ceil(STEP));
        let planes = precision.planes();
        let pair_tiles = steps * 2 * planes;
        let count = rows.div_ceil(PAIR) * pair_tiles;
        let mut tiles = Vec::with_capacity(count);
        let run = |_: usize, (tiles, x): &mut (&mut [MaybeUninit<Tile>], &[f32])| {
            let _: Amx = proof;
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe {
                match precision {
                    Precision::Bf16 | Precision::Bf16Both => split_pair::<1>(x, inputs, tiles),
                    Precision::Bf16x2 => split_pair::<2>(x, inputs, tiles),
                }
            }
        };
        let spare = tiles.spare_capacity_mut()[..count].chunks_exact_mut(pair_tiles);
        let mut pairs: Vec<_> = spare.zip(x.chunks(PAIR * inputs)).collect();
        match parallel {
            true => for_each_mut(&mut pairs, run),
            false => pairs.iter_mut().enumerate().for_each(|(index, pair)| run(index, pair)),
        }
        // SAFETY: `split_pair` writes all tiles of all steps.
        unsafe { tiles.set_len(count) };
        Activations { tiles, rows, steps, precision }
    }

    /// The tiles of one pair of row tiles in some steps.
    pub(super) fn pair(&self, pair: usize, steps: &Range<usize>) -> &[Tile] {
        let step_tiles = 2 * self.precision.planes();
        let tiles = &self.tiles[pair * self.steps * step_tiles..];
        &tiles[steps.start * step_tiles..steps.end * step_tiles]
    }
}

/// Splits at most [`PAIR`] rows into the tiles of a pair: all of them, with zeros for rows that
/// are not.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_pair<const PLANES: usize>(x: &[f32], inputs: usize, tiles: &mut [MaybeUninit<Tile>]) {
    for tile in 0..2 {
        let x = x.get(tile * TILE_ROWS * inputs..).unwrap_or(&[]);
        let rows = (x.len() / inputs).min(TILE_ROWS);
        for (step, tiles) in tiles.chunks_exact_mut(2 * PLANES).enumerate() {
            let first = step * STEP;
            let here = (inputs - first).min(STEP);
            let mut high = [_mm512_setzero_si512(); TILE_ROWS];
            let mut low = high;
            for row in 0..rows {
                // The lower plane is not computed if nobody takes it.
                [high[row], low[row]] = split_pairs(&x[row * inputs + first..][..here]);
            }
            transpose_into(high, &mut tiles[tile]);
            if PLANES == 2 {
                transpose_into(low, &mut tiles[2 + tile]);
            }
        }
    }
}
