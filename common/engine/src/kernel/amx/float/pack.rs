//! Weights on their way from memory to tiles next to each other.

use std::ops::Range;

use super::super::super::matmul::Matrix;
use super::super::super::x86::{Line, prefetch, read_bytes};
use super::super::LINE;
use super::{STRIP, STRIP_LINES};

/// So many rows before it is copied, memory is asked for one. With eight times as many, what comes
/// is gone from the second-level cache again before it is copied.
const LEAD: usize = 8;

/// Some inputs of some outputs, beside some pairs of row tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) outputs: Range<usize>,
    pub(super) pairs: Range<usize>,
    /// Steps.
    pub(super) block: Range<usize>,
}

impl Unit {
    pub(super) fn strips(&self) -> usize {
        self.outputs.len().div_ceil(STRIP)
    }

    /// Lines of its weights, packed.
    pub(super) fn lines(&self) -> usize {
        self.strips() * self.block.len() * STRIP_LINES
    }

    /// The weights of one of its outputs as they are stored.
    #[inline(always)]
    fn row<'a>(&self, weight: &Matrix<'a>, row: usize) -> Option<&'a [u8]> {
        let output = self.outputs.start + row;
        (output < self.outputs.end).then(|| {
            let bytes = weight.row_bytes();
            let block = self.block.start * LINE..(self.block.end * LINE).min(bytes);
            &weight.bytes[output * bytes + block.start..output * bytes + block.end]
        })
    }
}

/// Copies the weights of a unit to `[strip, step, tile of the strip, line]`, with zeros for outputs
/// and inputs past the end, while another is multiplied: lines that are asked for as they lie in
/// memory and wait for long would push each other out of the second-level cache, where those that a
/// power of two is between share places.
pub(super) struct Packer<'a> {
    weight: Matrix<'a>,
    unit: Option<Unit>,
    /// What comes after it, whose first rows are asked for.
    after: Option<Unit>,
    packed: &'a mut [Line],
    /// The next row, of so many.
    row: usize,
    rows: usize,
    /// Rows times `rounds` that should have been copied by now but are not.
    due: usize,
    rounds: usize,
}

impl<'a> Packer<'a> {
    /// For `unit`, in so many rounds; `packed` has room for it.
    pub(super) fn new(
        weight: Matrix<'a>,
        unit: Option<Unit>,
        after: Option<Unit>,
        packed: &'a mut [Line],
        rounds: usize,
    ) -> Packer<'a> {
        let rows = unit.as_ref().map_or(0, |unit| unit.strips() * STRIP);
        Packer { weight, unit, after, packed, row: 0, rows, due: 0, rounds }
    }

    /// Copies the rows of a round.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(super) fn advance(&mut self) {
        self.due += self.rows;
        while self.due >= self.rounds {
            self.due -= self.rounds;
            self.copy_row();
        }
    }

    /// Copies the rows that are left.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn finish(&mut self) {
        while self.row < self.rows {
            self.copy_row();
        }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn copy_row(&mut self) {
        let Some(unit) = &self.unit else { return };
        let later = self.row + LEAD;
        let asked = match later < self.rows {
            true => unit.row(&self.weight, later),
            false => {
                self.after.as_ref().and_then(|after| after.row(&self.weight, later - self.rows))
            }
        };
        for line in asked.into_iter().flat_map(|row| row.chunks(LINE)) {
            prefetch(line.as_ptr());
        }
        let strip = unit.block.len() * STRIP_LINES;
        let first = self.row / STRIP * strip + self.row % STRIP;
        let lines = self.packed[first..].iter_mut().step_by(STRIP_LINES).take(unit.block.len());
        match unit.row(&self.weight, self.row) {
            Some(bytes) => {
                for (line, bytes) in lines.zip(bytes.chunks(LINE)) {
                    line.write(read_bytes(bytes));
                }
            }
            None => lines.for_each(|line| *line = Line::ZERO),
        }
        self.row += 1;
    }
}
