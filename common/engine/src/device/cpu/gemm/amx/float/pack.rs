//! Packing: weights on their way from memory to tiles next to each other.

use std::ops::Range;

use super::shape::{STRIP, STRIP_LINES};
use super::weights::{Part, part};
use crate::device::cpu::gemm::weight::Weight;
use crate::device::cpu::isa::x86::Line;

/// A row is prefetched so many rows before it is copied. With eight times as many, it is
/// gone from the second-level cache again before it is copied.
const LEAD: usize = 8;

/// Some inputs of some outputs, beside some pairs of row tiles.
#[derive(Clone, Debug)]
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

    /// One of its outputs, if it has so many.
    #[inline(always)]
    fn output(&self, row: usize) -> Option<usize> {
        let output = self.outputs.start + row;
        (output < self.outputs.end).then_some(output)
    }
}

/// Packs the weights of a unit to `[strip, step, tile of the strip, line]`, with zeros for outputs
/// and inputs past the end, while another is multiplied: lines that are prefetched as they lie in
/// memory and wait for long would push each other out of the second-level cache, where those that a
/// power of two is between share places.
pub(super) struct Packer<'a> {
    unit: Option<(Unit, Part<'a>)>,
    /// What comes after it, whose first rows are prefetched.
    after: Option<(Unit, Part<'a>)>,
    packed: &'a mut [Line],
    /// The next row, of so many.
    row: usize,
    rows: usize,
    /// Rows times `rounds` that should have been copied by now but are not.
    due: usize,
    rounds: usize,
}

impl<'a> Packer<'a> {
    /// For `unit`, in exactly so many rounds; `packed` has room for it.
    pub(super) fn new(
        weight: Weight<'a>,
        unit: Option<Unit>,
        after: Option<Unit>,
        packed: &'a mut [Line],
        rounds: usize,
    ) -> Packer<'a> {
        let rows = unit.as_ref().map_or(0, |unit| unit.strips() * STRIP);
        let [unit, after] = [unit, after].map(|unit| {
            unit.map(|unit| {
                let part = part(&weight, &unit.block);
                (unit, part)
            })
        });
        Packer { unit, after, packed, row: 0, rows, due: 0, rounds }
    }

    /// Copies the rows of a round.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    #[inline]
    pub(super) fn advance(&mut self) {
        self.due += self.rows;
        while self.due >= self.rounds {
            self.due -= self.rounds;
            self.copy_row();
        }
    }

    /// Whether all rows are copied.
    pub(super) fn is_done(&self) -> bool {
        self.row == self.rows
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    #[inline]
    fn copy_row(&mut self) {
        let Some((unit, part)) = &self.unit else { return };
        let later = self.row + LEAD;
        let prefetched = match later < self.rows {
            true => Some((unit, part, later)),
            false => self.after.as_ref().map(|(unit, part)| (unit, part, later - self.rows)),
        };
        if let Some((unit, part, row)) = prefetched
            && let Some(output) = unit.output(row)
        {
            part.prefetch(output);
        }
        let strip = unit.block.len() * STRIP_LINES;
        let first = self.row / STRIP * strip + self.row % STRIP;
        let lines = &mut self.packed[first..];
        match unit.output(self.row) {
            Some(output) => part.write(output, lines),
            None => {
                let lines = lines.iter_mut().step_by(STRIP_LINES);
                lines.take(unit.block.len()).for_each(|line| *line = Line::ZERO);
            }
        }
        self.row += 1;
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::FloatType;

    use super::*;
    use crate::device::cpu::gemm::weight::Matrix;
    use crate::device::cpu::isa::x86::Amx;
    use crate::device::cpu::isa::x86::tiles::LINE;

    #[test]
    fn all_rounds_together_leave_every_line_where_it_belongs_and_zeros_past_the_end() {
        if Amx::detect().is_none() {
            crate::testing::not_shown("AMX kernels", "this processor has no tile registers");
            return;
        }
        // 3 lines and 20 bytes per output.
        let (inputs, count) = (106, 70);
        let bytes: Vec<u8> = (0..2 * inputs * count).map(|at| (at % 251) as u8 + 1).collect();
        let weight = Matrix { bytes: &bytes, float: FloatType::BF16, inputs };
        let stored = |output: usize, at: usize| {
            let inside = output < count && at < weight.row_bytes();
            if inside { bytes[output * weight.row_bytes() + at] } else { 0 }
        };
        for (outputs, block) in [(0..70, 0..4), (32..64, 1..3), (64..70, 3..4), (5..6, 0..1)] {
            let unit = Unit { outputs: outputs.clone(), pairs: 0..1, block: block.clone() };
            for rounds in [1, 7, unit.strips() * STRIP, 1000] {
                let mut packed = vec![Line([7; LINE]); unit.lines()];
                let after = Some(unit.clone());
                let mut packer = Packer::new(
                    Weight::Float(weight),
                    Some(unit.clone()),
                    after,
                    &mut packed,
                    rounds,
                );
                for _ in 0..rounds {
                    assert!(!packer.is_done() || rounds > 70);
                    // SAFETY: the processor has the instructions, as `detect` said.
                    unsafe { packer.advance() };
                }
                assert!(packer.is_done());
                for (index, line) in packed.iter().enumerate() {
                    let (strip, row) = (index / STRIP_LINES / block.len(), index % STRIP_LINES);
                    let step = block.start + index / STRIP_LINES % block.len();
                    let output = outputs.start + strip * STRIP + row;
                    let expected = |at| match output < outputs.end {
                        true => stored(output, step * LINE + at),
                        false => 0,
                    };
                    assert!((0..LINE).all(|at| line.0[at] == expected(at)), "{output} {step}");
                }
            }
        }
    }
}
