//! Prefetches of what is multiplied next, spread over the rounds of what is multiplied now.

use std::ops::Range;

use crate::device::cpu::isa::prefetch::prefetch;
use crate::device::cpu::isa::x86::Line;

/// Cache lines to prefetch, some with each round.
pub(crate) struct Ahead {
    /// The first line of the rows from here on, which lie `stride` bytes apart.
    row: *const u8,
    stride: usize,
    rows: usize,
    /// Lines of each row, and the next one.
    lines: usize,
    line: usize,
    /// How many a round prefetches.
    each: usize,
}

impl Ahead {
    /// The weights that are needed after some outputs are multiplied up to byte `end` of their rows, to be prefetched
    /// in so many rounds: the next `block` bytes of the same rows, or the first ones of as many
    /// outputs after them. `weights` are those of all outputs, in rows of `row_bytes` bytes.
    pub(crate) fn after(
        weights: &[u8],
        row_bytes: usize,
        outputs: &Range<usize>,
        end: usize,
        block: usize,
        rounds: usize,
    ) -> Ahead {
        let (first, at) = match end < row_bytes {
            true => (outputs.start, end),
            false => (outputs.end, 0),
        };
        let last = (first + outputs.len()).min(weights.len() / row_bytes);
        let row = weights.as_ptr().wrapping_add(first * row_bytes + at);
        let lines = block.min(row_bytes - at).div_ceil(size_of::<Line>());
        Ahead::new(row, row_bytes, (last.saturating_sub(first), lines), rounds)
    }

    /// The lines of `values`, which begin and end with one, to be prefetched in so many rounds.
    pub(super) fn slice<T>(values: &[T], rounds: usize) -> Ahead {
        let lines = size_of_val(values) / size_of::<Line>();
        Ahead::new(values.as_ptr().cast(), 0, (usize::from(lines > 0), lines), rounds)
    }

    /// For the `lines` lines of `rows` rows that begin at `row` and lie `stride` bytes apart, to be
    /// prefetched in so many rounds.
    fn new(row: *const u8, stride: usize, (rows, lines): (usize, usize), rounds: usize) -> Ahead {
        let each = (rows * lines).div_ceil(rounds.max(1));
        Ahead { row, stride, rows, lines, line: 0, each }
    }

    /// Prefetches the lines of a round.
    #[inline(always)]
    pub(crate) fn prefetch_round(&mut self) {
        for _ in 0..self.each {
            match self.next() {
                Some(line) => prefetch(line),
                None => return,
            }
        }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<*const u8> {
        self.rows.checked_sub(1)?;
        let line = self.row.wrapping_add(self.line * size_of::<Line>());
        self.line += 1;
        if self.line == self.lines {
            (self.line, self.rows) = (0, self.rows - 1);
            self.row = self.row.wrapping_add(self.stride);
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_prefetched_once_within_the_rounds() {
        let memory = vec![0u8; 4_096];
        for (rows, lines, rounds) in [(0, 3, 5), (1, 1, 1), (3, 4, 5), (4, 4, 100)] {
            let mut ahead = Ahead::new(memory.as_ptr(), 300, (rows, lines), rounds);
            assert!(ahead.each * rounds >= rows * lines);
            let asked: Vec<usize> = std::iter::from_fn(|| ahead.next())
                .map(|line| line.addr() - memory.as_ptr().addr())
                .collect();
            let row = |row: usize| (0..lines).map(move |line| row * 300 + line * 64);
            assert_eq!(asked, (0..rows).flat_map(row).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_lines_of_a_slice_are_prefetched() {
        let lines = [Line::ZERO; 7];
        let mut ahead = Ahead::slice(&lines, 3);
        assert_eq!((ahead.rows, ahead.lines, ahead.each), (1, 7, 3));
        assert_eq!(ahead.next(), Some(lines.as_ptr().cast()));
        assert_eq!(Ahead::slice::<Line>(&[], 1).next(), None);
    }

    #[test]
    fn what_comes_next_is_the_rest_of_the_rows_then_the_rows_behind_and_never_past_the_end() {
        // Seven rows of 180 bytes, taken three at a time in blocks of two lines.
        let weights = vec![0u8; 7 * 180];
        let first = |outputs: Range<usize>, end: usize| {
            let ahead = Ahead::after(&weights, 180, &outputs, end, 128, 1);
            (ahead.row.addr() - weights.as_ptr().addr(), ahead.rows, ahead.lines)
        };
        assert_eq!(first(0..3, 128), (128, 3, 1)); // 52 bytes are left.
        assert_eq!(first(0..3, 256), (3 * 180, 3, 2));
        assert_eq!(first(3..6, 180), (6 * 180, 1, 2));
        assert_eq!(first(6..7, 200), (7 * 180, 0, 2));
    }
}
