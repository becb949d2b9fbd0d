//! How files of safetensors name and lay out the tensors of packed matrices, one file for each way to: when a checkpoint is
//! opened they become those that everybody else knows ([`Part`](crate::Part)), and nothing after it asks how a file had them.

mod awq;
mod canonical;
mod gptq;
mod integers;
mod list;
mod mlx;
mod module;
mod pack_quantized;
#[cfg(test)]
mod tests;

pub use awq::Awq;
pub use canonical::{Canonical, canonical};
pub use gptq::Gptq;
pub use list::Packing;
pub use mlx::Mlx;
pub(crate) use module::Module;
pub use module::ReadBytes;
pub use pack_quantized::PackQuantized;

use crate::container::StoredTensor;
use crate::encoding::Part;
use crate::error::Error;

/// One way to name and lay out the tensors of packed matrices: a file beside this one, and a variant of [`Packing`].
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

/// What a tensor of a packed matrix is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// A part of it.
    Part(Part),
    /// Something that says how the parts are to be read, or that only other programs need: it goes no further.
    Beside,
}
