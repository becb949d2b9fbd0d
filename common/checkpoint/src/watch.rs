//! Knowing whether what was computed with was what files held.

use std::sync::Arc;

use crate::file_map::{DamagedFile, FileMap};
use crate::mapped::MappedTensor;

/// The files that some tensors are pieces of, for whoever computes with these.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    files: Vec<Arc<FileMap>>,
}

impl Watch {
    /// Adds the file that a tensor is a piece of, if it is one of a file.
    pub fn add(&mut self, tensor: &MappedTensor) {
        if let Some(file) = tensor.file()
            && !self.files.iter().any(|known| Arc::ptr_eq(known, file))
        {
            self.files.push(file.clone());
        }
    }

    /// How many files these are.
    #[cfg(test)]
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// To be asked after the tensors were read: what was read before was the files' own.
    ///
    /// # Errors
    /// [`DamagedFile`]: it may not have been.
    pub fn check(&self) -> Result<(), DamagedFile> {
        match self.files.iter().find(|file| file.is_damaged()) {
            None => Ok(()),
            Some(file) => Err(DamagedFile { path: file.path().to_owned() }),
        }
    }
}
