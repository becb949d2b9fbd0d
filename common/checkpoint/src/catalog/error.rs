//! Why the tensors that are there do not make a model.

use std::path::PathBuf;

use crate::dtype::Dtype;
use crate::encoding::Encoding;
use crate::listed::listed;
use crate::range::LayerRange;

/// Why the tensors of a checkpoint are not the model its configuration describes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum CatalogError {
    #[error("there are two tensors called {tensor:?}")]
    TensorTwice { tensor: String },
    #[error(
        "tensor {tensor:?} has {bytes} bytes from byte {offset} of file {file}, of which there are {there}"
    )]
    TensorOutside { tensor: String, file: usize, offset: u64, bytes: u64, there: u64 },
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
    #[error(
        "tensor {tensor:?} has shape {found:?}; it must have a part for each of {experts} experts"
    )]
    NotOfAllExperts { tensor: String, experts: u64, found: Vec<u64> },
    #[error(
        "tensor {tensor:?} in {} has {found} at {index}: experts could not be chosen by it",
        file.display()
    )]
    NotFinite { tensor: String, file: PathBuf, index: usize, found: f32 },
    #[error("tensor {tensor:?} is {dtype}; {expected}")]
    UnsupportedDtype { tensor: String, dtype: Dtype, expected: &'static str },
    #[error("tensor {tensor:?} has shape {found:?}; stored as {encoding} it has {expected:?}")]
    PackedShapeMismatch { tensor: String, encoding: Encoding, expected: Vec<u64>, found: Vec<u64> },
    #[error(
        "tensor {tensor:?} has rows of {columns} weights, which cannot be stored as {encoding}"
    )]
    NotWholeGroups { tensor: String, columns: u64, encoding: Encoding },
    #[error("tensor {tensor:?} gives column {index} the group {found}; there are {groups}")]
    NoSuchGroup { tensor: String, index: u64, found: i32, groups: u64 },
    #[error("tensor {tensor:?} does not say how a matrix is packed: {}", cause.to_string().escape_debug())]
    PackedText { tensor: String, cause: serde_json::Error },
    #[error(
        "tensor {tensor:?} has no text that says how a matrix is packed, but zeros; all of the file must be here"
    )]
    PackedTextIsZeros { tensor: String },
    #[error("tensor {tensor:?} says {field} {found}; it must be {expected}")]
    PackedFieldMismatch {
        tensor: String,
        field: &'static str,
        expected: &'static str,
        found: String,
    },
    #[error(
        "tensor {tensor:?} has the level {found} for code {code}; in {encoding} it is {expected}"
    )]
    PackedLevels { tensor: String, encoding: Encoding, code: usize, expected: f32, found: f32 },
    #[error("the scales of {module:?} are {scales} and its biases {biases}; they must be alike")]
    ParamTypesDiffer { module: String, scales: Dtype, biases: Dtype },
}

impl CatalogError {
    /// The same with other names of tensors.
    pub(super) fn with_names(mut self, rename: impl Fn(&mut String)) -> CatalogError {
        match &mut self {
            Self::TensorTwice { tensor }
            | Self::TensorOutside { tensor, .. }
            | Self::UnknownTensor { tensor, .. }
            | Self::UnexpectedTensor { tensor, .. }
            | Self::ShapeMismatch { tensor, .. }
            | Self::NotOfAllExperts { tensor, .. }
            | Self::NotFinite { tensor, .. }
            | Self::UnsupportedDtype { tensor, .. }
            | Self::PackedShapeMismatch { tensor, .. }
            | Self::NotWholeGroups { tensor, .. }
            | Self::NoSuchGroup { tensor, .. }
            | Self::PackedText { tensor, .. }
            | Self::PackedTextIsZeros { tensor }
            | Self::PackedFieldMismatch { tensor, .. }
            | Self::PackedLevels { tensor, .. } => rename(tensor),
            Self::MissingTensors { tensors } => tensors.iter_mut().for_each(rename),
            Self::LayerCountMismatch { .. } | Self::ParamTypesDiffer { .. } => {}
        }
        self
    }
}

fn ranges(ranges: &[LayerRange]) -> String {
    let texts: Vec<String> = ranges.iter().map(LayerRange::to_string).collect();
    format!("layers {}", listed(&texts))
}
