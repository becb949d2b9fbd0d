//! What a layout is.

use super::module::Module;
use super::word::Word;
use crate::container::StoredTensor;
use crate::error::Error;

/// One way to name and lay out the tensors of packed matrices: a file beside this one, and a variant of
/// [`Packing`](super::Packing).
pub(crate) trait Layout {
    /// What names end in, after the path of a module, and what a tensor of such a name is; where a part may be called
    /// several ways, a missing one is called the first.
    fn words(&self) -> &'static [(&'static str, Word)];

    /// The tensors of one module, as everybody else knows them: in the types, shapes and order that its encoding has, under
    /// the names that [`Module::named`] gives. The weight of a packed one says how it is stored
    /// ([`StoredTensor::encoding`]); those of a module that is not packed are given back as they are.
    ///
    /// # Errors
    /// [`Error`], naming the tensor as the file does.
    fn canonical(&self, module: Module<'_>) -> Result<Vec<StoredTensor>, Error>;
}
