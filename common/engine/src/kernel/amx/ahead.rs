//! Weights to ask memory for while others are multiplied.

use super::super::x86::{Line, prefetch};

/// Lines of memory to ask for, some with each round.
pub(in super::super) struct Ahead {
    /// The first line of the rows from here on, which lie `stride` bytes apart.
    row: *const u8,
    stride: usize,
    rows: usize,
    /// Lines of each row, and the next one.
    lines: usize,
    line: usize,
    /// How many a round asks for.
    each: usize,
}

impl Ahead {
    /// For the `lines` lines of `rows` rows that begin at `row` and lie `stride` bytes apart, to be
    /// asked for in so many rounds.
    pub(in super::super) fn new(
        row: *const u8,
        stride: usize,
        (rows, lines): (usize, usize),
        rounds: usize,
    ) -> Ahead {
        let each = (rows * lines).div_ceil(rounds.max(1));
        Ahead { row, stride, rows, lines, line: 0, each }
    }

    /// Asks for those of a round.
    #[inline(always)]
    pub(in super::super) fn ask(&mut self) {
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
    fn every_line_is_asked_for_once_within_the_rounds() {
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
}
