//! What a container gives.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use super::tensor::StoredTensor;
use super::texts::TextFiles;
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

impl Stored {
    /// What the tensors are called.
    pub(crate) fn names(&self) -> HashSet<&str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }
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
