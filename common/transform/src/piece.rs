//! What an output is made of.

use std::ops::Range;
use std::sync::Arc;

use cake_checkpoint::{Dtype, Encoding};

use crate::form::Form;

/// A position in an output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index into [`Job::outputs`](crate::Job::outputs).
    pub output: usize,
    /// First byte there.
    pub offset: u64,
}

/// A part of an output (of several, where a matrix becomes several tensors) and what it comes from.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes that are known beforehand: headers and small texts.
    Known {
        /// The bytes.
        bytes: Vec<u8>,
        /// Where they go.
        place: Place,
    },
    /// Bytes of a file of the source, as they are.
    Copy {
        /// Which bytes.
        from: Stretch,
        /// Where they go.
        place: Place,
    },
    /// A matrix (or a vector, as a matrix of one row) whose numbers are written in another form.
    Rows(Rows),
    /// CRC-32 (of IEEE 802.3) of all bytes of the output before it, little-endian: known when all else is in its place.
    Checksum {
        /// Where it goes.
        place: Place,
    },
}

/// Bytes of a file of the source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Index into the source's files.
    pub file: usize,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// A matrix whose rows are read, decoded, and written in another form.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The tensor, as sentences name it.
    pub name: String,
    /// How it is stored.
    pub encoding: Encoding,
    /// The tensors that it is stored in, in the order of [`Encoding::parts`]: type and place.
    pub parts: Vec<(Dtype, Stretch)>,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// Which row is written when.
    pub order: Order,
    /// What is added to every number, as f32.
    pub add: f32,
    /// What the numbers are written as.
    pub form: Arc<dyn Form>,
    /// Where each part of the form goes.
    pub places: Vec<Place>,
}

/// The order in which rows are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As they are.
    Same,
    /// Each head's rows from halves to pairs: of a head of `head_rows` rows, first row 0, then row `head_rows / 2`, then
    /// row 1, and so on.
    HalvesToPairs {
        /// Rows of a head; even, and the matrix has whole heads.
        head_rows: u64,
    },
    /// The other way: of a head first rows 0, 2, 4 and so on, then the others.
    PairsToHalves {
        /// As above.
        head_rows: u64,
    },
}

impl Piece {
    /// Where it begins to be read, file and offset; `None` for what is read nowhere.
    pub(crate) fn source(&self) -> Option<(usize, u64)> {
        let begins = |from: &Stretch| (from.file, from.offset);
        match self {
            Piece::Copy { from, .. } => Some(begins(from)),
            Piece::Rows(rows) => rows.parts.first().map(|(_, from)| begins(from)),
            Piece::Known { .. } | Piece::Checksum { .. } => None,
        }
    }

    /// What a part of it fills: bytes of it, or rows of a matrix.
    pub(crate) fn places(&self, range: &Range<u64>) -> Vec<(Place, u64)> {
        let count = range.end - range.start;
        let at = |place: &Place, skipped: u64| Place { offset: place.offset + skipped, ..*place };
        match self {
            Piece::Known { place, .. }
            | Piece::Copy { place, .. }
            | Piece::Checksum { place, .. } => vec![(at(place, range.start), count)],
            Piece::Rows(rows) => rows.places(range),
        }
    }
}

impl Rows {
    /// What some rows fill, part by part.
    pub(crate) fn places(&self, range: &Range<u64>) -> Vec<(Place, u64)> {
        let count = range.end - range.start;
        let row_bytes = self.form.row_bytes(self.shape[1]).into_iter();
        let filled = |(bytes, place): (u64, &Place)| {
            (Place { offset: place.offset + range.start * bytes, ..*place }, count * bytes)
        };
        let mut places: Vec<(Place, u64)> = row_bytes.zip(&self.places).map(filled).collect();
        if let Some((place, bytes)) = places.first_mut() {
            // The head goes with the first rows.
            match range.start {
                0 => *bytes += self.form.head_bytes(),
                _ => place.offset += self.form.head_bytes(),
            }
        }
        places
    }

    /// Bytes of a row in each part; `None` for a part that all rows share.
    pub(crate) fn row_bytes(&self) -> Vec<Option<u64>> {
        row_bytes(self.encoding, &self.parts, self.shape)
    }
}

/// Bytes of a row in each part of a matrix of that shape; `None` for a part that all rows share.
pub(crate) fn row_bytes(
    encoding: Encoding,
    parts: &[(Dtype, Stretch)],
    shape: [u64; 2],
) -> Vec<Option<u64>> {
    let specs = encoding.parts(shape).unwrap_or_default();
    let of = |(index, (_, part)): (usize, &(Dtype, Stretch))| {
        let spec = specs.get(index);
        let has_rows =
            spec.is_none_or(|spec| matches!(spec.shape[..], [all, _] if all == shape[0]));
        has_rows.then(|| part.bytes / shape[0].max(1))
    };
    parts.iter().enumerate().map(of).collect()
}

impl Order {
    /// Rows that are only written in another order among themselves.
    pub fn block(self) -> u64 {
        match self {
            Order::Same => 1,
            Order::HalvesToPairs { head_rows } | Order::PairsToHalves { head_rows } => head_rows,
        }
    }

    /// Which row of its block is written at `row` of the block.
    pub fn source(self, row: u64) -> u64 {
        match self {
            Order::Same => row,
            Order::HalvesToPairs { head_rows } => row % 2 * (head_rows / 2) + row / 2,
            Order::PairsToHalves { head_rows } => row % (head_rows / 2) * 2 + row / (head_rows / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_from_halves_to_pairs_and_back() {
        let to = Order::HalvesToPairs { head_rows: 6 };
        assert_eq!((0..6).map(|row| to.source(row)).collect::<Vec<_>>(), [0, 3, 1, 4, 2, 5]);
        let back = Order::PairsToHalves { head_rows: 6 };
        assert_eq!((0..6).map(|row| back.source(row)).collect::<Vec<_>>(), [0, 2, 4, 1, 3, 5]);
        assert!((0..6).all(|row| back.source(to.source(row)) == row));
    }
}
