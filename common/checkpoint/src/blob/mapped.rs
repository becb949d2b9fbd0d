//! A blob on a worker's disk, mapped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::error::BlobError;
use super::{Digest, Manifest};
use crate::error::Error;
use crate::file_map::{DamagedFile, FileMap};
use crate::mapped::{MappedTensor, map_file};

/// How far ahead of the hash the file is asked for, in bytes.
const PREFETCH_BYTES: usize = 8 << 20;

/// A blob file, mapped for reading. Its tensors are used in place, unless they were copied.
///
/// The file must not be changed while it is open: the store that owns it writes a blob under
/// another name and renames it only when it is whole.
#[derive(Debug)]
pub struct Blob {
    path: PathBuf,
    map: Arc<FileMap>,
    /// When the file had last been written before it was mapped, where the system says.
    written: Option<SystemTime>,
    /// Where each chunk ends, and its digest.
    chunks: Vec<(u64, Digest)>,
    tensors: Vec<(String, MappedTensor)>,
}

impl Blob {
    /// Maps the file and checks its length and header against the manifest; see [`Blob::verify`]
    /// for its data.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened or mapped, [`Error::Manifest`] if the manifest
    /// contradicts itself, [`Error::Blob`] if the file is another one.
    pub fn open(path: &Path, manifest: &Manifest) -> Result<Blob, Error> {
        manifest.check()?;
        let file = File::open(path).map_err(|cause| Error::io("open", path, cause))?;
        let written = file.metadata().and_then(|file| file.modified()).ok();
        let map = map_file(&file, path)?;
        if map.len() as u64 != manifest.file_bytes {
            let (expected, found) = (manifest.file_bytes, map.len() as u64);
            return Err(BlobError::WrongLength { path: path.into(), expected, found }.into());
        }
        let header = manifest.header();
        if !map.starts_with(&header) {
            return Err(BlobError::WrongHeader { path: path.into() }.into());
        }
        let mut start = header.len();
        let mut tensors = Vec::with_capacity(manifest.tensors.len());
        let encodings = manifest.tensors.iter().map(|tensor| tensor.encoding);
        for (entry, encoding) in manifest.entries().into_iter().zip(encodings) {
            let end = start + entry.bytes as usize; // At most the length of the map, checked above.
            let tensor = MappedTensor::from_map(map.clone(), start..end, entry.dtype, entry.shape)
                .expect("the manifest's tensors fill the file, whose length is right");
            tensors.push((entry.name.to_owned(), tensor.with_encoding(encoding)));
            start = end;
        }
        let chunks = manifest.chunk_ends().into_iter().zip(manifest.chunks.iter().copied());
        Ok(Blob { path: path.into(), map, written, chunks: chunks.collect(), tensors })
    }

    /// Whether the file at its path was written last when it was before it was mapped; false where the system
    /// does not say.
    pub fn is_as_opened(&self) -> bool {
        let written = std::fs::metadata(&self.path).and_then(|file| file.modified()).ok();
        written.is_some() && written == self.written
    }

    /// Whether the file was cut, or could not be read, since it was mapped, and that was seen: what was read of it may
    /// have been zeros.
    pub fn is_damaged(&self) -> bool {
        self.map.is_damaged()
    }

    /// Reads the whole file once, bringing it into memory, and compares every chunk with the
    /// manifest.
    ///
    /// `progress` is told the bytes checked so far after each chunk.
    ///
    /// # Errors
    /// [`BlobError::WrongDigest`] names the first chunk that differs; [`BlobError::Damaged`] if the file was cut or
    /// cannot be read.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let (mut start, mut fetched) = (0, 0);
        for (chunk, &(end, expected)) in self.chunks.iter().enumerate() {
            if start >= fetched {
                self.prefetch(start, 2 * PREFETCH_BYTES);
                fetched = start + PREFETCH_BYTES;
            }
            let end = end as usize; // At most the length of the map, checked when it was opened.
            let found = Digest::of(&self.map[start..end]);
            if self.is_damaged() {
                return Err(BlobError::from(DamagedFile { path: self.path.clone() }).into());
            }
            if found != expected {
                let (path, chunk, offset) = (self.path.clone(), chunk as u64, start as u64);
                return Err(BlobError::WrongDigest { path, chunk, offset, expected, found }.into());
            }
            start = end;
            progress(end as u64);
        }
        Ok(())
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<MappedTensor> {
        self.tensors.iter().find(|(own, _)| own == name).map(|(_, tensor)| tensor.clone())
    }

    /// Every tensor with its name, in blob order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &MappedTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The same to be replaced by copies. To be called once the blob is verified: what replaces a
    /// tensor is not looked at again.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = (&str, &mut MappedTensor)> {
        self.tensors.iter_mut().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn prefetch(&self, start: usize, length: usize) {
        self.map.prefetch(start, length.min(self.map.len().saturating_sub(start)));
    }
}
