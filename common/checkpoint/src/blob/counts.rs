//! Where errors of a checkpoint's weights count.

use std::sync::Arc;

use super::codes::is_plain_matrix;
use super::digest::Digest;
use crate::catalog::{Checkpoint, Tensor};
use crate::encoding::{Counts, Importance};

impl Checkpoint {
    /// Whether a matrix of its layers is in plain numbers, so that it may be encoded.
    pub fn has_plain_matrices(&self) -> bool {
        self.tensors.iter().any(is_plain_matrix)
    }

    /// Has its weights encoded so that errors are where they count least. The first time counts, before anything is encoded.
    pub fn weigh(&self, importance: Arc<Importance>) {
        self.importance.get_or_init(|| {
            let digest = Digest::of(importance.to_json().as_bytes());
            (importance, digest)
        });
    }

    /// How much errors count in the columns of the matrix whose weight has that name; `None` where nobody said so, or said it
    /// of another number of columns.
    pub fn counts_of(&self, weight: &str, columns: u64) -> Option<Counts> {
        let counts = self.importance.get()?.0.counts(weight)?;
        (columns == counts.len() as u64).then_some(counts)
    }

    /// The same of a tensor, if it is a matrix.
    pub(crate) fn counts(&self, matrix: &Tensor) -> Option<Vec<f32>> {
        let &[_, columns] = &matrix.shape[..] else { return None };
        Some(self.counts_of(&matrix.name, columns)?.numbers())
    }
}
