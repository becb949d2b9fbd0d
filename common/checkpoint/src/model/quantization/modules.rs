//! What a configuration says of how the matrices of a checkpoint are stored.

use std::collections::BTreeMap;

use crate::encoding::{Encoding, ModuleFormat};
use crate::layout::Packing;

/// How the matrices of a checkpoint are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quantization {
    pub(super) default: Encoding,
    /// What single modules differ in; `None` for those that are not quantized.
    pub(super) modules: BTreeMap<String, Option<Encoding>>,
    pub(super) packing: Packing,
}

impl Quantization {
    /// How files name and lay out the tensors of packed matrices.
    pub fn packing(&self) -> &Packing {
        &self.packing
    }

    /// How the module at that path (a tensor's name without `.weight`) is stored.
    pub fn of(&self, module: &str) -> ModuleFormat {
        match self.modules.get(module) {
            None => ModuleFormat::IfPacked(self.default),
            Some(Some(format)) => ModuleFormat::Packed(*format),
            Some(None) => ModuleFormat::Plain,
        }
    }
}
