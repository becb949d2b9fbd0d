//! Where a tensor lies in a file, and how.

use crate::dtype::Dtype;
use crate::encoding::Encoding;

/// A tensor as it lies in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTensor {
    /// Its name, as the specification has it.
    pub name: String,
    /// Index into [`Stored::files`](super::Stored::files).
    pub file: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// First byte in the file.
    pub offset: u64,
    /// Size in bytes: what type and shape need. All of them are in the file.
    pub bytes: u64,
    /// How its bytes lie in the file.
    pub lies: Lies,
    /// How the matrix is stored whose weight this is, where the format says it; where it does not, the parts that there are
    /// say it to whoever looks for the matrix.
    pub encoding: Option<Encoding>,
}

/// How the bytes of a tensor lie in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lies {
    /// One after the other, as they are.
    Together,
    /// Its numbers lie apart: no format says so of a tensor, but what is taken of a larger one may lie so.
    Apart(Strides),
    /// Its rows lie apart, so many bytes from the first of one to the first of the next, each together.
    RowsApart(u64),
    /// It is made of codes that the file packs across rows: each of its rows takes one of each word.
    Across(Across),
    /// Its rows, or the numbers of a vector, lie in pairs: of each head those of its first and of its second half in turn.
    InPairs {
        /// How many heads there are; of each it has as many rows, an even number.
        heads: u64,
    },
    /// It is no bytes of the file: a number in F32, of these bytes, which the file has as text where the tensor is said to
    /// begin.
    Said([u8; 4]),
}

/// How the codes of a matrix lie that the file packs across rows: a word of 32 bits, little-endian, has those of one column and
/// as many rows as go into it, whose last may be filled up. Everybody else knows them row by row, packed along the columns, in
/// whole bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Across {
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Codes of a row.
    pub columns: u64,
    /// How far apart words lie: those of some rows and of those after them, and those of a column and of the next.
    pub words: Strides,
    /// Where in its word a row's code is.
    pub places: Places,
}

/// Where in a word the codes of rows are that it has, in codes from the lowest bits on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Places {
    /// As the rows follow each other.
    InOrder,
    /// Those of the rows with even numbers first.
    EvenFirst,
}

/// How far apart the numbers of a matrix lie, or of a vector, whose rows are one number each; in numbers, or in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strides {
    /// From one row to the next.
    pub row: u64,
    /// From one number of a row to the next.
    pub column: u64,
}
