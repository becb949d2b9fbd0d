//! Why valid files do not make a model.

use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::encoding::Encoding;
use crate::range::LayerRange;

/// How many names a sentence lists before it only counts.
const NAMES_SHOWN: usize = 8;

/// Why a checkpoint, each of whose files may be valid, is not the model its configuration describes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum CatalogError {
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
    #[error("tensor {tensor:?} is not part of {architecture}")]
    UnknownTensor { tensor: String, architecture: String },
    #[error("tensor {tensor:?} does not belong to this model: {reason}")]
    UnexpectedTensor { tensor: String, reason: &'static str },
    #[error(
        "the configuration says {expected} layers, but there are no tensors for {}",
        ranges(missing)
    )]
    LayerCountMismatch { expected: usize, missing: Vec<LayerRange> },
    #[error("{} tensors are missing: {}", tensors.len(), listed(tensors))]
    MissingTensors { tensors: Vec<String> },
    #[error("tensor {tensor:?} has shape {found:?}, the configuration makes it {expected:?}")]
    ShapeMismatch { tensor: String, expected: Vec<u64>, found: Vec<u64> },
    #[error("tensor {tensor:?} is {dtype}; {expected}")]
    UnsupportedDtype { tensor: String, dtype: Dtype, expected: &'static str },
    #[error("tensor {tensor:?} has shape {found:?}; stored as {encoding} it has {expected:?}")]
    PackedShapeMismatch { tensor: String, encoding: Encoding, expected: Vec<u64>, found: Vec<u64> },
    #[error(
        "tensor {tensor:?} has rows of {columns} weights, which cannot be stored as {encoding}"
    )]
    NotWholeGroups { tensor: String, columns: u64, encoding: Encoding },
    #[error("the scales of {module:?} are {scales} and its biases {biases}; they must be alike")]
    ParamTypesDiffer { module: String, scales: Dtype, biases: Dtype },
}

/// A few names, then how many more there are.
pub(super) fn listed(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_SHOWN {
        text += &format!(" and {} more", names.len() - NAMES_SHOWN);
    }
    text
}

fn ranges(ranges: &[LayerRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(LayerRange::to_string).collect();
    format!("layers {}", listed(&texts))
}
