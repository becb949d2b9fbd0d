//! A matrix of blocks.

use std::marker::PhantomData;

use super::super::codes::Codes;
use super::super::stored::{LANES, Params, Stored};
use super::block::Block;

/// A matrix of blocks, row after row.
#[derive(Clone, Copy)]
pub(in super::super) struct Blocks<'a, B> {
    bytes: &'a [u8],
    outputs: usize,
    /// Bytes of an output.
    row_bytes: usize,
    kind: PhantomData<B>,
}

impl<'a, B> Blocks<'a, B> {
    /// `outputs` of `inputs` each.
    ///
    /// # Panics
    /// If `bytes` are not so many.
    pub(in super::super) fn new<const V: usize, const N: usize>(
        bytes: &'a [u8],
        outputs: usize,
        inputs: usize,
    ) -> Blocks<'a, B>
    where
        B: Block<V, N>,
    {
        assert!(inputs > 0 && inputs.is_multiple_of(B::CODES), "whole blocks");
        let row_bytes = inputs / B::CODES * B::BYTES;
        assert_eq!(bytes.len(), outputs * row_bytes, "whole outputs");
        Blocks { bytes, outputs, row_bytes, kind: PhantomData }
    }
}

// SAFETY: what is read are blocks of a row that there are, by the promises of `Block` and of the caller.
unsafe impl<B: Block<V, N>, const V: usize, const N: usize> Stored<V, N> for Blocks<'_, B> {
    type Row = *const u8;
    const GROUP: usize = B::GROUP;
    const LARGEST: usize = B::LARGEST;
    const PIECE_BYTES: usize = (B::BYTES * Self::IN_PIECE).div_ceil(B::CODES);

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn groups(&self) -> usize {
        self.row_bytes / B::BYTES * (B::CODES / B::GROUP)
    }

    fn bytes(&self) -> (*const u8, usize) {
        (self.bytes.as_ptr(), self.row_bytes)
    }

    #[inline(always)]
    fn row(&self, output: usize) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(output * self.row_bytes)
    }

    #[inline(always)]
    fn codes_of(row: *const u8) -> *const u8 {
        row
    }

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; V] {
        let pieces = B::CODES / Self::IN_PIECE;
        // SAFETY: the caller's promises.
        unsafe { B::codes(rows, piece / pieces * B::BYTES, piece % pieces) }
    }

    #[inline(always)]
    unsafe fn params(&self, rows: &[*const u8; LANES], first: usize, count: usize) -> Params {
        let groups = B::CODES / B::GROUP;
        let mut blocks = *rows; // Adapters of arrays stay calls in code with instructions of its own.
        for block in &mut blocks {
            *block = block.wrapping_add(first / groups * B::BYTES);
        }
        // SAFETY: the caller's promises.
        unsafe { B::params(&blocks, first % groups, count) }
    }
}
