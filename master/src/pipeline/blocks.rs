//! KV blocks: the master alone says which positions of which sequence live in which block.
use cake_engine::blocks_for;

/// Free block numbers. Every stage's pool has the same blocks.
#[derive(Debug)]
pub struct Blocks {
    free: Vec<u32>,
    total: usize,
}

/// Every block is taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the KV cache is full: {needed} more blocks needed, {free} of {total} free")]
pub struct Full {
    /// Blocks asked for.
    pub needed: usize,
    /// Blocks there are.
    pub free: usize,
    /// Blocks of the pool.
    pub total: usize,
}

impl Blocks {
    /// A pool of `total` blocks, all free.
    pub fn new(total: usize) -> Self {
        // Taken from the end: low numbers first, so that a short sequence touches little memory.
        Self { free: (0..total as u32).rev().collect(), total }
    }

    /// Makes `held` cover positions `[0, positions)`.
    ///
    /// # Errors
    /// [`Full`]; `held` is then unchanged.
    pub fn cover(&mut self, held: &mut Vec<u32>, positions: usize) -> Result<(), Full> {
        let needed = blocks_for(positions).saturating_sub(held.len());
        if needed > self.free.len() {
            return Err(Full { needed, free: self.free.len(), total: self.total });
        }
        held.extend(self.free.drain(self.free.len() - needed..).rev());
        Ok(())
    }

    /// Takes blocks back.
    pub fn release(&mut self, held: &mut Vec<u32>) {
        self.free.extend(held.drain(..).rev());
    }
}

#[cfg(test)]
mod tests {
    use cake_engine::BLOCK_POSITIONS;

    use super::*;

    #[test]
    fn blocks_cover_positions_and_come_back() {
        let mut blocks = Blocks::new(3);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        blocks.cover(&mut one, 1).expect("room");
        blocks.cover(&mut one, BLOCK_POSITIONS).expect("the same block");
        assert_eq!(one, [0]);
        blocks.cover(&mut other, BLOCK_POSITIONS + 1).expect("room");
        assert_eq!(other, [1, 2]);
        let full = blocks.cover(&mut one, BLOCK_POSITIONS + 1).expect_err("full");
        assert_eq!(full, Full { needed: 1, free: 0, total: 3 });
        blocks.release(&mut other);
        blocks.cover(&mut one, 2 * BLOCK_POSITIONS).expect("room again");
        assert_eq!(one, [0, 1]);
    }
}
