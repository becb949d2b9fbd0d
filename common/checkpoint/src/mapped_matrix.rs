//! A matrix in memory or mapped, ready to be computed with.

use crate::encoding::Encoding;
use crate::mapped::MappedTensor;

/// A matrix in memory or mapped.
#[derive(Clone, Debug)]
pub struct MappedMatrix {
    /// How it is stored.
    pub encoding: Encoding,
    /// Its tensors, in the order of [`Encoding::parts`].
    pub parts: Vec<MappedTensor>,
}
