//! The crate's error: one variant per module that can fail.

use std::io;
use std::path::{Path, PathBuf};

use crate::blob::{BlobError, ManifestError};
use crate::catalog::CatalogError;
use crate::container::apr::AprError;
use crate::container::gguf::GgufError;
use crate::container::safetensors::WeightsError;
use crate::container::safetensors::header::FileError;
use crate::container::safetensors::index::IndexError;
use crate::encoding::EncodeError;
use crate::locate::LocateError;
use crate::model::ConfigError;
use crate::units::format_bytes;

/// Whatever can go wrong with a checkpoint or a blob. Its text is a whole sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model was not found.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// A configuration that is malformed or asks for what is not supported.
    #[error("{}: {cause}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// What is wrong in it.
        cause: ConfigError,
    },
    /// A checkpoint file that cannot be read or is malformed.
    #[error(transparent)]
    File(#[from] FileError),
    /// An APR file that is malformed, or of a kind that is not read.
    #[error("{}: {cause}", path.display())]
    Apr {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: AprError,
    },
    /// A GGUF file that is malformed, or of a kind that is not read.
    #[error("{}: {cause}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: GgufError,
    },
    /// A file whose bytes are not those that were written.
    #[error("{}: the checksum at the end of the file is {found:08x}, its bytes make {expected:08x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// What it ends in.
        found: u32,
        /// What its bytes make.
        expected: u32,
    },
    /// An index file that is malformed.
    #[error("{}: {cause}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong in it.
        cause: IndexError,
    },
    /// Files that are each valid but not the files of one model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Tensors that do not make this model.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A manifest that is malformed.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file that is not the blob it should be.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The system refused.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried: "open", "read", "map", "write".
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A stream that blob bytes were written to refused them.
    #[error("cannot write blob bytes: {0}")]
    Write(io::Error),
    /// No memory for a copy of a tensor, or for what it is encoded as.
    #[error("no memory for tensor {tensor:?} of {}: {cause}", format_bytes(*bytes))]
    Memory {
        /// Which tensor.
        tensor: String,
        /// Its size.
        bytes: u64,
        /// What the system said.
        cause: io::Error,
    },
    /// Weights that cannot be packed.
    #[error("tensor {tensor:?} cannot be encoded: {cause}")]
    Encode {
        /// Which tensor.
        tensor: String,
        /// Which of its weights, and why.
        cause: EncodeError,
    },
    /// A range outside a tensor or a blob was asked for.
    #[error("bytes {offset}..{end} were asked of {what}, which has {bytes}")]
    OutOfRange {
        /// The tensor or blob.
        what: String,
        /// First byte asked for.
        offset: u64,
        /// First byte after those asked for; saturates.
        end: u64,
        /// How many there are.
        bytes: u64,
    },
}

impl Error {
    /// Memory was refused for `bytes` bytes of a tensor.
    pub fn memory(tensor: &str, bytes: usize, cause: io::Error) -> Self {
        Error::Memory { tensor: tensor.to_owned(), bytes: bytes as u64, cause }
    }

    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Error::Io { action, path: path.into(), cause }
    }
}
