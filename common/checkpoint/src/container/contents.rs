//! What a container gives.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::texts::TextFiles;
use crate::dtype::Dtype;
use crate::encoding::Encoding;
use crate::error::Error;
use crate::model::ModelSpec;

/// What there is of a model in its files, of which only headers were read.
#[derive(Debug)]
pub struct Contents {
    /// What the model is.
    pub spec: ModelSpec,
    /// Its files and what they hold.
    pub stored: Stored,
}

/// Files and what they hold, whatever model it may be.
#[derive(Debug)]
pub struct Stored {
    /// Tokenizer, chat template, defaults and whatever else is text.
    pub texts: TextFiles,
    /// The files, each with the handle that its header was read from.
    pub files: Vec<(CheckpointFile, File)>,
    /// The tensors that count, by file and offset; no name twice.
    pub tensors: Vec<StoredTensor>,
    /// What is odd but does not matter, as sentences.
    pub warnings: Vec<String>,
}

/// One file of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of its header: of all that says where its tensors lie and what they are.
    pub header_digest: [u8; 32],
    /// What safetensors files say of themselves as free text, such as `format`; nothing in other formats.
    pub metadata: BTreeMap<String, String>,
    /// The checksum that it ends in, if it does.
    pub checksum: Option<Checksum>,
}

/// A checksum at the end of a file of all bytes before it: CRC-32 of IEEE 802.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// How many bytes there are before it.
    pub bytes: u64,
    /// What it says.
    pub crc32: u32,
}

impl Checksum {
    /// Compares with what the bytes of the file at `path` make.
    ///
    /// # Errors
    /// [`Error::Checksum`] if bytes changed since they were written.
    pub fn check(self, path: &Path, crc32: u32) -> Result<(), Error> {
        match crc32 == self.crc32 {
            true => Ok(()),
            false => Err(Error::Checksum { path: path.into(), found: self.crc32, expected: crc32 }),
        }
    }
}

/// A tensor as it lies in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTensor {
    /// Its name, as the specification has it.
    pub name: String,
    /// Index into [`Stored::files`].
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
