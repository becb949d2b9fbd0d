//! The tensors that a checkpoint is made of.

use crate::container::safetensors::writer::Entry;
use crate::dtype::Dtype;
use crate::encoding::Encoding;
use crate::model::Role;

/// One tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Name as in the file.
    pub name: String,
    /// Index into [`Checkpoint::files`](super::Checkpoint::files).
    pub file: usize,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// First byte in the file (not in its data).
    pub offset: u64,
    /// Size in bytes: what its offsets say.
    pub bytes: u64,
    /// What it is for.
    pub role: Role,
    /// How the matrix is stored whose weight this is; `None` for every other tensor.
    pub encoding: Option<Encoding>,
}

impl Tensor {
    pub(crate) fn entry(&self) -> Entry<'_> {
        let Tensor { name, dtype, shape, bytes, .. } = self;
        Entry { name, dtype: *dtype, shape, bytes: *bytes }
    }
}
