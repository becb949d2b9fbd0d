//! What attention is asked for: rows of queries, and the cache that they see.

use std::ops::Range;

use cake_checkpoint::KvDtype;

use crate::batch::AttendRow;
use crate::device::Attending;

/// The cached keys and values of one layer, each `[blocks, kv_heads, block_positions, head_dim]`, a head of a position
/// with its scales, if there are such.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    /// Keys, little-endian.
    pub(crate) keys: &'a [u8],
    /// Values, little-endian.
    pub(crate) values: &'a [u8],
    /// How both are stored.
    pub(crate) kv: KvDtype,
    /// Positions in one block.
    pub(crate) block_positions: usize,
    /// Heads of the cache.
    pub(crate) kv_heads: usize,
    /// Elements of one head.
    pub(crate) head_dim: usize,
}

impl KvView<'_> {
    /// Bytes of the head of one position.
    pub(crate) fn head_bytes(&self) -> usize {
        self.kv.head_bytes(self.head_dim)
    }

    /// Where the head of a position starts, in bytes; the next position of the block follows.
    pub(crate) fn offset(&self, blocks: &[u32], position: usize, kv_head: usize) -> usize {
        let block = blocks[position / self.block_positions] as usize;
        let slot = (block * self.kv_heads + kv_head) * self.block_positions;
        (slot + position % self.block_positions) * self.head_bytes()
    }

    /// [`KvView::offset`] of all `positions`, in order.
    pub(super) fn offsets(
        &self,
        blocks: &[u32],
        positions: Range<usize>,
        kv_head: usize,
    ) -> Vec<usize> {
        let head_bytes = self.head_bytes();
        let mut offsets = Vec::with_capacity(positions.len());
        let mut position = positions.start;
        while position < positions.end {
            let left = self.block_positions - position % self.block_positions;
            let count = left.min(positions.end - position);
            let first = self.offset(blocks, position, kv_head);
            offsets.extend((0..count).map(|index| first + index * head_bytes));
            position += count;
        }
        offsets
    }
}

/// Attention of one layer for one step.
pub(crate) struct Attend<'a> {
    /// The cache.
    pub(crate) kv: KvView<'a>,
    /// One per row.
    pub(crate) rows: &'a [AttendRow<'a>],
    /// Its heads, what scores go through, and which positions a row sees.
    pub(crate) spec: &'a Attending,
    /// Of each query head a score beside those of positions, which has no value.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Positions whose softmax is taken at once. Part of the numerics.
pub(super) const SPAN: usize = 512;
/// Queries that a tile has at most, if its rows can be divided: enough to make widening and
/// transposing cheap, few enough for their scores to stay in the second-level cache.
pub(super) const TILE_QUERIES: usize = 64;

impl Attend<'_> {
    /// The positions that a row at `position` sees.
    pub(super) fn seen(&self, position: usize) -> Range<usize> {
        self.spec.first_seen(position)..position + 1
    }

    /// Query heads that share a head of the cache.
    pub(super) fn group(&self) -> usize {
        self.spec.heads / self.kv.kv_heads
    }

    /// The sinks of the query heads that share a head of the cache.
    pub(super) fn sinks(&self, kv_head: usize) -> Option<&[f32]> {
        let group = self.group();
        self.sinks.map(|sinks| &sinks[kv_head * group..][..group])
    }

    /// Rows in tiles of consecutive positions of one sequence.
    pub(super) fn tiles(&self) -> Vec<Range<usize>> {
        let most = (TILE_QUERIES / self.group()).max(1);
        let mut tiles: Vec<Range<usize>> = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let follows = |tile: &Range<usize>| {
                let last = &self.rows[tile.end - 1];
                tile.len() < most
                    && last.position + 1 == row.position
                    && std::ptr::eq(last.blocks, row.blocks)
            };
            match tiles.last_mut() {
                Some(tile) if follows(tile) => tile.end = index + 1,
                _ => tiles.push(index..index + 1),
            }
        }
        tiles
    }

    /// The spans that the rows of a tile see something of.
    pub(super) fn spans(&self, tile: &Range<usize>) -> Range<usize> {
        let first = self.seen(self.rows[tile.start].position).start;
        let last = self.rows[tile.end - 1].position;
        first / SPAN..last / SPAN + 1
    }
}
