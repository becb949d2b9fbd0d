//! Weights to ask memory for while others are multiplied.

/// Rows of weights to ask memory for: lines at `row`, and `stride` bytes further on each time.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub(super) row: *const u8,
    pub(super) stride: usize,
    pub(super) count: usize,
    /// How many to ask for at a time.
    each: usize,
}

impl Ahead {
    /// `count` rows, to be asked for in so many parts.
    pub(super) fn new(row: *const u8, stride: usize, count: usize, parts: usize) -> Ahead {
        Ahead { row, stride, count, each: count.div_ceil(parts.max(1)) }
    }

    /// The next ones, perhaps none.
    pub(super) fn next(&mut self) -> Ahead {
        let count = self.each.min(self.count);
        let next = Ahead { count, ..*self };
        self.count -= count;
        self.row = self.row.wrapping_add(count * self.stride);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_asked_for_once_within_the_parts() {
        let memory = vec![0u8; 1_000];
        for (count, parts) in [(0, 3), (1, 4), (7, 3), (8, 4), (5, 1)] {
            let mut ahead = Ahead::new(memory.as_ptr(), 100, count, parts);
            let mut asked = Vec::new();
            for _ in 0..parts {
                let part = ahead.next();
                let first = part.row.addr() - memory.as_ptr().addr();
                asked.extend((0..part.count).map(|row| first + row * part.stride));
            }
            assert_eq!(asked, (0..count).map(|row| row * 100).collect::<Vec<_>>());
        }
    }
}
