//! What a tensor of a packed matrix is.

use crate::encoding::Part;

/// What a tensor of a packed matrix is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// A part of it.
    Part(Part),
    /// Something that says how the parts are to be read, or that only other programs need: it goes no further.
    Beside,
}
