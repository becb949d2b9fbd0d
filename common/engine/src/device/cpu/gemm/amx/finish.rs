//! The way of accumulators from tiles to the result.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::tiles::TILE_ROWS;
use crate::device::cpu::isa::x86::{Line, transposed};

/// Where finished accumulators go.
pub(crate) struct Finish<'a> {
    /// One element per output of the whole matrix.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, outputs]`.
    pub(crate) target: Target<'a>,
}

impl Finish<'_> {
    /// Writes a tile of accumulators, transposed, with the bias: its lines are `outputs` and its lanes are `rows`, 16
    /// of each at most.
    ///
    /// # Safety
    /// Nobody else has these elements.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn write(
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
