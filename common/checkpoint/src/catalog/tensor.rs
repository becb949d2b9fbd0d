//! The tensors that a checkpoint is made of.

use std::ops::Deref;

use crate::container::StoredTensor;
use crate::container::safetensors::writer::Entry;
use crate::encoding::Encoding;
use crate::model::Role;

/// One tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// As it lies in a file of [`Checkpoint::files`](super::Checkpoint::files).
    pub stored: StoredTensor,
    /// What it is for.
    pub role: Role,
    /// How the matrix is stored whose weight this is; `None` for every other tensor.
    pub encoding: Option<Encoding>,
}

impl Tensor {
    pub(crate) fn entry(&self) -> Entry<'_> {
        let StoredTensor { name, dtype, shape, bytes, .. } = &self.stored;
        Entry { name, dtype: *dtype, shape, bytes: *bytes }
    }
}

impl Deref for Tensor {
    type Target = StoredTensor;

    fn deref(&self) -> &StoredTensor {
        &self.stored
    }
}
