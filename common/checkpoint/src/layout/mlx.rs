//! As MLX has them: the names that everybody else knows are its names.

use super::{Layout, Module, Word};
use crate::container::StoredTensor;
use crate::encoding::Part;
use crate::error::Error;

/// The layout of MLX.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mlx;

impl Layout for Mlx {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight", Word::Part(Part::Weight)),
            (".scales", Word::Part(Part::Scales)),
            (".biases", Word::Part(Part::Biases)),
        ]
    }

    fn canonical(&self, module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        Ok(module.as_they_are())
    }
}
