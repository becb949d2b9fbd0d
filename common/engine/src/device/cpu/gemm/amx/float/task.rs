//! A task of a GEMM of rows of prefill, and the end of its accumulators.

use std::ops::Range;

use super::activations::Activations;
use super::shape::PAIR;
use crate::device::cpu::gemm::amx::finish::Finish;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::Weight;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::TILE_ROWS;

/// One task of the product: all rows, some outputs.
pub(super) struct Task<'a> {
    pub(super) weight: Weight<'a>,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) x: &'a Activations,
    pub(super) outputs: Range<usize>,
    pub(super) target: Target<'a>,
}

impl Task<'_> {
    /// Writes the accumulators of the strip that begins at output `first` and of a pair of row tiles.
    #[target_feature(enable = "avx512f")]
    pub(super) fn finish(&self, first: usize, pair: usize, sums: &[Line]) {
        let finish = Finish { bias: self.bias, target: self.target };
        let sums: &[[Line; TILE_ROWS]] = sums.as_chunks().0;
        for (index, sums) in sums.iter().enumerate() {
            let output = (first + index / 2 * TILE_ROWS).min(self.outputs.end);
            let outputs = output..(output + TILE_ROWS).min(self.outputs.end);
            let row = pair * PAIR + index % 2 * TILE_ROWS;
            let rows = row..(row + TILE_ROWS).min(self.x.rows);
            // SAFETY: each task has other outputs.
            unsafe { finish.write(sums, outputs, rows) };
        }
    }
}
