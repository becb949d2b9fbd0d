//! Affine matrices whose codes of 2, 3, 5 or 6 bits lie one behind the other, scales and biases apart from them.

use std::ops::Range;

use cake_checkpoint::FloatType;

use super::codes::Codes;
use super::packed::{Row, params};
use super::pattern::{PATTERNS, Pattern, read};
use super::stored::{LANES, Params, Stored, VECTOR_BYTES, ask};

/// Codes of 5 or 6 bits, or `SHORT` ones of 2 or 3, `GROUP` to a scale.
#[derive(Clone, Copy)]
pub(super) struct Stream<'a, const GROUP: usize, const SHORT: bool> {
    codes: &'a [u8],
    params: [&'a [u8]; 2],
    float: FloatType,
    outputs: usize,
    groups: usize,
    bits: usize,
    pattern: &'static Pattern,
}

impl<'a, const GROUP: usize, const SHORT: bool> Stream<'a, GROUP, SHORT> {
    /// `outputs` of `inputs` each, with scales and biases of type `float`.
    ///
    /// # Panics
    /// If the parts are not so many, or codes have other widths.
    pub(super) fn new(
        bits: usize,
        codes: &'a [u8],
        (params, float): ([&'a [u8]; 2], FloatType),
        [outputs, inputs]: [usize; 2],
    ) -> Stream<'a, GROUP, SHORT> {
        assert!(inputs > 0 && inputs.is_multiple_of(GROUP), "whole groups");
        assert!(SHORT == (bits < 4), "as wide as the type has them");
        let groups = inputs / GROUP;
        assert_eq!(codes.len(), outputs * inputs / 8 * bits, "whole outputs");
        assert!(
            params.iter().all(|part| part.len() == outputs * groups * float.bytes()),
            "one a group"
        );
        let pattern =
            PATTERNS[bits].as_ref().expect("the table gives other widths to other kernels");
        Stream { codes, params, float, outputs, groups, bits, pattern }
    }

    fn row_bytes(&self) -> usize {
        self.groups * GROUP / 8 * self.bits
    }
}

// SAFETY: what is read are whole pieces of a row, the first bytes of it and the last ones, or whole scales and biases of it.
unsafe impl<const GROUP: usize, const SHORT: bool> Stored<1, 1> for Stream<'_, GROUP, SHORT> {
    type Row = Row;
    const GROUP: usize = GROUP;
    const LARGEST: usize = 63;
    const PIECE_BYTES: usize = VECTOR_BYTES / 8 * 6;

    fn piece_bytes(&self) -> usize {
        VECTOR_BYTES / 8 * self.bits
    }

    fn outputs(&self) -> usize {
        self.outputs
    }

    fn groups(&self) -> usize {
        self.groups
    }

    fn bytes(&self) -> (*const u8, usize) {
        (self.codes.as_ptr(), self.row_bytes())
    }

    #[inline(always)]
    fn row(&self, output: usize) -> Row {
        let params = output * self.groups * self.float.bytes();
        Row {
            codes: self.codes.as_ptr().wrapping_add(output * self.row_bytes()),
            scales: self.params[0].as_ptr().wrapping_add(params),
            biases: self.params[1].as_ptr().wrapping_add(params),
        }
    }

    #[inline(always)]
    fn codes_of(row: Row) -> *const u8 {
        row.codes
    }

    #[inline(always)]
    unsafe fn codes<C: Codes>(&self, rows: C::Rows, piece: usize) -> [C; 1] {
        let at = piece * self.piece_bytes();
        let last = at + self.piece_bytes() - read(SHORT);
        // SAFETY: the caller's promises; a piece has as many bytes as half of it is read from, or more.
        unsafe {
            let bytes = C::halves_at(rows, [at, last], SHORT);
            let [even, odd] = bytes.parted(self.pattern);
            [even.or(odd).and(self.pattern.bits)]
        }
    }

    #[inline(always)]
    fn ask_params(&self, first: usize, outputs: usize, groups: &Range<usize>) {
        let width = self.float.bytes();
        for part in self.params {
            ask(part.as_ptr(), first * self.groups * width, groups, outputs * width);
        }
    }

    #[inline(always)]
    unsafe fn params(&self, rows: &[Row; LANES], first: usize, count: usize) -> Params {
        // SAFETY: the caller's promises.
        unsafe { params(self.float, rows, first, count) }
    }
}
