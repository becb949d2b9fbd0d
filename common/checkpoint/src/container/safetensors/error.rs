//! Why valid files are not the files of one model.

use std::path::PathBuf;

use crate::listed::listed;

/// Why files, each of which may be valid, are not the weights of one checkpoint.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum WeightsError {
    #[error("{}: no model.safetensors and no model.safetensors.index.json{hint}", directory.display())]
    NoWeights { directory: PathBuf, hint: &'static str },
    #[error("{}: both model.safetensors and an index of other files are there, and the single file lacks {}; name the file or the index to use", directory.display(), listed(missing))]
    Ambiguous { directory: PathBuf, missing: Vec<String> },
    #[error("{}: {} of {expected} checkpoint files are missing: {}", directory.display(), files.len(), listed(files))]
    FilesMissing { directory: PathBuf, expected: usize, files: Vec<String> },
    #[error("the index maps tensor {tensor:?} to {file:?}, which does not hold it")]
    IndexTensorMissing { tensor: String, file: String },
    #[error("the index maps tensor {tensor:?} to {mapped:?}, but it is in {found:?}")]
    IndexWrongFile { tensor: String, mapped: String, found: String },
    #[error(
        "tensor {tensor:?} is in both {first:?} and {second:?}, and the index does not say which counts"
    )]
    DuplicateTensor { tensor: String, first: String, second: String },
}
