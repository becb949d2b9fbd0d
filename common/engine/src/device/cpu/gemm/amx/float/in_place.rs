//! Weights in bf16 multiplied in place, as they lie in memory, which sets the pace, 32 outputs at a time.

use std::arch::asm;
use std::ops::Range;

use super::shape::{STEP, STRIP, Tile};
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS};

/// Steps of a block, 1 KiB of each output. While one is multiplied, the next is prefetched, one output after the
/// other: so long a piece of each is as fast as all of it, and what is prefetched is needed soon.
const PREFETCHED_STEPS: usize = 16;

/// The weights of a strip of outputs, and of those behind it.
pub(super) struct InPlace<'a> {
    /// Of the strip: [`STRIP`] rows, or fewer at the end of a matrix.
    pub(super) weights: &'a [u8],
    pub(super) row_bytes: usize,
    /// Whether the next weights are prefetched: once, however many rows pass over them.
    pub(super) prefetch: bool,
}

/// The weights of one step: [`STRIP`] rows of [`LINE`] bytes each, the first at `from`, `stride` bytes
/// from one to the next.
pub(super) struct Step {
    pub(super) index: usize,
    from: *const u8,
    stride: usize,
}

impl InPlace<'_> {
    /// Calls `multiply` for each step in order, with the weights to prefetch meanwhile.
    #[inline(always)]
    pub(super) fn walk(&self, mut multiply: impl FnMut(Step, Prefetches)) {
        let steps = self.row_bytes.div_ceil(2 * STEP);
        for begin in (0..steps).step_by(PREFETCHED_STEPS) {
            let block = begin..(begin + PREFETCHED_STEPS).min(steps);
            // After the last block comes the first one of the outputs behind.
            let next = match block.end < steps {
                true => block.end * LINE,
                false => STRIP * self.row_bytes,
            };
            let next = self.weights.as_ptr().wrapping_add(next);
            for (index, step) in block.clone().enumerate() {
                // Outputs whose next weights are prefetched.
                let prefetches = match self.prefetch {
                    true => index * STRIP / block.len()..(index + 1) * STRIP / block.len(),
                    false => 0..0,
                };
                let prefetches =
                    Prefetches { next, row_bytes: self.row_bytes, outputs: prefetches };
                let bytes = step * LINE..self.row_bytes.min((step + 1) * LINE);
                let whole = self.weights.len() == STRIP * self.row_bytes && bytes.len() == LINE;
                let mut copied = None;
                let (from, stride) = match whole {
                    true => {
                        let rows = (STRIP - 1) * self.row_bytes + LINE;
                        (self.weights[bytes.start..][..rows].as_ptr(), self.row_bytes)
                    }
                    false => (copied.insert(self.copy(bytes)).as_ptr().cast(), LINE),
                };
                multiply(Step { index: step, from, stride }, prefetches);
            }
        }
    }

    /// These bytes of every output; zero past the end of a row or of the rows.
    #[inline(never)]
    fn copy(&self, bytes: Range<usize>) -> [Tile; 2] {
        let mut copied = [[Line::ZERO; TILE_ROWS]; 2];
        let rows = self.weights.chunks_exact(self.row_bytes);
        for (line, row) in copied.as_flattened_mut().iter_mut().zip(rows) {
            let row = &row[bytes.clone()];
            line.0[..row.len()].copy_from_slice(row);
        }
        copied
    }
}

impl Step {
    /// Where the step's weights of the first 16 outputs or of the last 16 begin, and how far apart two rows are.
    #[inline(always)]
    pub(super) fn half(&self, second: bool) -> (*const u8, usize) {
        (self.from.wrapping_add(usize::from(second) * TILE_ROWS * self.stride), self.stride)
    }
}

/// Weights to prefetch: a block of each of some outputs.
pub(super) struct Prefetches {
    next: *const u8,
    row_bytes: usize,
    outputs: Range<usize>,
}

impl Prefetches {
    /// Prefetches those of the next output, if there is one.
    #[inline(always)]
    pub(super) fn one(&mut self) {
        if let Some(output) = self.outputs.next() {
            prefetch_block(self.next.wrapping_add(output * self.row_bytes));
        }
    }

    /// Prefetches those of all outputs that are left.
    #[inline(always)]
    pub(super) fn rest(self) {
        for output in self.outputs {
            prefetch_block(self.next.wrapping_add(output * self.row_bytes));
        }
    }
}

/// Prefetches [`PREFETCHED_STEPS`] lines: written out, as a loop would take as many instructions again.
#[inline(always)]
fn prefetch_block(from: *const u8) {
    const { assert!(PREFETCHED_STEPS * LINE == 1024) };
    // SAFETY: a prefetch touches nothing; every processor of this architecture has it.
    unsafe {
        asm!(
            "prefetcht1 [{from} + 0]",
            "prefetcht1 [{from} + 64]",
            "prefetcht1 [{from} + 128]",
            "prefetcht1 [{from} + 192]",
            "prefetcht1 [{from} + 256]",
            "prefetcht1 [{from} + 320]",
            "prefetcht1 [{from} + 384]",
            "prefetcht1 [{from} + 448]",
            "prefetcht1 [{from} + 512]",
            "prefetcht1 [{from} + 576]",
            "prefetcht1 [{from} + 640]",
            "prefetcht1 [{from} + 704]",
            "prefetcht1 [{from} + 768]",
            "prefetcht1 [{from} + 832]",
            "prefetcht1 [{from} + 896]",
            "prefetcht1 [{from} + 960]",
            from = in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
    }
}
