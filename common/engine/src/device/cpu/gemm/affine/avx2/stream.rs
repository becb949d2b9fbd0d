//! Affine matrices whose codes of 2, 3, 5 or 6 bits lie one behind the other, scales and biases apart from them.

use std::ops::Range;

use super::codes::Codes;
use super::packed::{Row, params};
use super::stored::{LANES, Params, Stored, VECTOR_BYTES, ask};
use crate::device::cpu::element::FloatType;

/// Bytes that are shifted at once: half of a piece's codes come from them.
const HALF: usize = VECTOR_BYTES / 2;

/// How 16 codes come out of the bytes that they lie in: each from the two bytes that have its bits, moved to the upper one.
pub(super) struct Pattern {
    /// Those two bytes, of the codes at even places and of those at odd ones, for both halves of a piece.
    pub(super) places: [[u8; VECTOR_BYTES]; 2],
    /// What moves them, as powers of two.
    pub(super) factors: [[u16; HALF]; 2],
    /// The bits of a code.
    pub(super) bits: u8,
}

impl Pattern {
    /// That of codes of so many bits, of which the second half of a piece begins `behind` bytes behind where its bytes are read
    /// from.
    const fn new(bits: usize, behind: usize) -> Pattern {
        let mut pattern = Pattern {
            places: [[0; VECTOR_BYTES]; 2],
            factors: [[0; HALF]; 2],
            bits: 0xff >> (8 - bits),
        };
        let mut at = 0;
        while at < HALF {
            let (bit, parity, word) = (at * bits, at % 2, at / 2);
            let first = (bit / 8) as u8;
            // The last byte has no neighbour, and its code needs none.
            let last = if bit / 8 + 1 < 2 * bits { first + 1 } else { first };
            let mut half = 0;
            while half < 2 {
                let (behind, to) = ((half * behind) as u8, half * HALF + 2 * word);
                pattern.places[parity][to] = first + behind;
                pattern.places[parity][to + 1] = last + behind;
                pattern.factors[parity][half * HALF / 2 + word] = 1 << (8 - bit % 8);
                half += 1;
            }
            at += 1;
        }
        pattern
    }
}

/// Bytes that are read for half of a piece.
const fn read(short: bool) -> usize {
    if short { HALF / 2 } else { HALF }
}

/// Of codes of so many bits.
static PATTERNS: [Option<Pattern>; 7] = {
    const fn of(bits: usize) -> Option<Pattern> {
        // The second half is read so that it ends with the piece.
        Some(Pattern::new(bits, read(bits < 4) - 2 * bits))
    }
    [None, None, of(2), of(3), None, of(5), of(6)]
};

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
