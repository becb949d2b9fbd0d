//! The tensors of one module, as a layout gets them.

use std::collections::BTreeMap;

use super::word::Word;
use crate::catalog::CatalogError;
use crate::container::StoredTensor;
use crate::encoding::{ModuleFormat, Part};
use crate::error::Error;

/// Reads bytes of a tensor from an offset on, as they lie in its file.
pub type ReadBytes<'a> = dyn Fn(&StoredTensor, u64, &mut [u8]) -> Result<(), Error> + 'a;

/// The tensors of one module of a file, or of the same module of all experts.
pub(crate) struct Module<'a> {
    /// Its path: what the names begin with.
    pub(crate) path: &'a str,
    /// What the configuration says of it.
    pub(crate) said: ModuleFormat,
    /// Its tensors, under their own names.
    pub(crate) tensors: Vec<(Word, StoredTensor)>,
    /// What the file calls parts.
    pub(crate) words: &'static [(&'static str, Word)],
    /// Where each is to be listed under the name that it gets, with that of the file.
    pub(crate) called: &'a mut BTreeMap<String, String>,
    /// For layouts whose tensors say how others are to be read.
    pub(crate) read: &'a ReadBytes<'a>,
}

impl Module<'_> {
    /// Whether a part is there.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.tensors.iter().any(|(word, _)| *word == Word::Part(part))
    }

    /// A part, if it is there.
    pub(crate) fn part(&self, part: Part) -> Option<&StoredTensor> {
        let found = self.tensors.iter().find(|(word, _)| *word == Word::Part(part));
        found.map(|(_, tensor)| tensor)
    }

    /// Takes a part, under the name that everybody else has for it.
    ///
    /// # Errors
    /// [`CatalogError::MissingTensors`] if it is not there, by the file's word for it; [`CatalogError::TensorTwice`] if it
    /// is there under two names.
    pub(crate) fn take(&mut self, part: Part) -> Result<StoredTensor, CatalogError> {
        let found = self.tensors.iter().position(|(word, _)| *word == Word::Part(part));
        let Some(found) = found else {
            return Err(CatalogError::MissingTensors { tensors: vec![self.word(part)] });
        };
        let (_, tensor) = self.tensors.swap_remove(found);
        if let Some(other) = self.part(part) {
            return Err(CatalogError::TensorTwice { tensor: other.name.clone() });
        }
        Ok(self.named(tensor, part))
    }

    /// The tensor as that part of this module.
    pub(crate) fn named(&mut self, tensor: StoredTensor, part: Part) -> StoredTensor {
        let name = format!("{}{}", self.path, part.ending());
        if name != tensor.name {
            self.called.insert(name.clone(), tensor.name);
        }
        StoredTensor { name, ..tensor }
    }

    /// What the file calls a part.
    pub(crate) fn word(&self, part: Part) -> String {
        let usual = self.words.iter().find(|(_, word)| *word == Word::Part(part));
        let ending = usual.map_or(part.ending(), |(ending, _)| *ending);
        format!("{}{ending}", self.path)
    }

    /// Its parts, each as the file has it.
    pub(crate) fn unchanged_parts(self) -> Vec<StoredTensor> {
        let parts = self.tensors.into_iter().filter(|(word, _)| *word != Word::Beside);
        parts.map(|(_, tensor)| tensor).collect()
    }

    /// All its tensors, each as the file has it.
    pub(crate) fn unchanged(self) -> Vec<StoredTensor> {
        self.tensors.into_iter().map(|(_, tensor)| tensor).collect()
    }
}
