//! How codes are unpacked from bytes in which they lie one behind the other.

use std::arch::x86_64::__m256i;

/// Bytes that are shifted at once: half of a piece's codes come from them.
const HALF: usize = size_of::<__m256i>() / 2;

/// How 16 codes are unpacked from the bytes that they lie in: each from the two bytes that have its bits, moved to the
/// upper one.
pub(super) struct Pattern {
    /// Those two bytes, of the codes at even places and of those at odd ones, for both halves of a piece.
    pub(super) places: [[u8; 2 * HALF]; 2],
    /// What moves them, as powers of two.
    pub(super) factors: [[u16; HALF]; 2],
    /// The bits of a code.
    pub(super) bits: u8,
}

impl Pattern {
    /// That of codes of so many bits, of which the second half of a piece begins `behind` bytes behind where its bytes
    /// are read from.
    const fn new(bits: usize, behind: usize) -> Pattern {
        let mut pattern = Pattern {
            places: [[0; 2 * HALF]; 2],
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
pub(super) const fn read(short: bool) -> usize {
    if short { HALF / 2 } else { HALF }
}

/// Of codes of so many bits.
pub(super) static PATTERNS: [Option<Pattern>; 7] = {
    const fn of(bits: usize) -> Option<Pattern> {
        // The second half is read so that it ends with the piece.
        Some(Pattern::new(bits, read(bits < 4) - 2 * bits))
    }
    [None, None, of(2), of(3), None, of(5), of(6)]
};
