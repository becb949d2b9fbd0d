//! A matrix of blocks.

use std::marker::PhantomData;

use super::super::codes::Codes;
use super::super::stored::{LANES, Params, Stored, WideParams};
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
        let mut blocks = *rows;
        behind(&mut blocks, first / groups * B::BYTES);
        // SAFETY: the caller's promises.
        unsafe { B::params(&blocks, first % groups, count) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    #[inline]
    unsafe fn wide_params(
        &self,
        rows: &[[*const u8; LANES]; 2],
        first: usize,
        count: usize,
        to: &mut WideParams,
    ) {
        let mut blocks = *rows;
        for eight in &mut blocks {
            behind(eight, first * B::GROUP / B::CODES * B::BYTES);
        }
        // SAFETY: the caller's promises.
        unsafe {
            if count < LANES || !B::wide_params(&blocks, to) {
                let [these, those] = rows;
                let these = self.params(these, first, count);
                to.join(&these, &self.params(those, first, count));
            }
        }
    }
}

/// As many bytes behind each. A loop, since adapters of arrays stay calls in code with instructions of its own.
#[inline(always)]
fn behind(places: &mut [*const u8; LANES], bytes: usize) {
    for place in places {
        *place = place.wrapping_add(bytes);
    }
}
