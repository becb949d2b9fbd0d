//! The bytes of one tensor, shared: a piece of a mapped file, or a vector.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::dtype::Dtype;
use crate::error::Error;

/// A tensor whose bytes are read in place.
///
/// Cheap to clone; the mapping lives as long as any clone. The bytes may start at **any** address, so
/// they are read with `from_le_bytes` and never cast. They are little-endian and row-major.
#[derive(Clone)]
pub struct MappedTensor {
    storage: Storage,
    range: Range<usize>,
    dtype: Dtype,
    shape: Arc<[u64]>,
}

#[derive(Clone)]
enum Storage {
    Map(Arc<Mmap>),
    Vec(Arc<Vec<u8>>),
}

impl MappedTensor {
    /// A tensor that owns its bytes, for tests and probes.
    ///
    /// # Panics
    /// If `bytes` is not exactly what `dtype` and `shape` need.
    pub fn from_vec(bytes: Vec<u8>, dtype: Dtype, shape: Vec<u64>) -> Self {
        assert_eq!(
            dtype.tensor_bytes(&shape),
            Ok(bytes.len() as u64),
            "the bytes of a {dtype} tensor of shape {shape:?}"
        );
        let range = 0..bytes.len();
        MappedTensor { storage: Storage::Vec(Arc::new(bytes)), range, dtype, shape: shape.into() }
    }

    /// The piece `range` of a map; `None` when the map does not reach that far.
    pub(crate) fn from_map(
        map: Arc<Mmap>,
        range: Range<usize>,
        dtype: Dtype,
        shape: &[u64],
    ) -> Option<Self> {
        map.get(range.clone())?;
        Some(MappedTensor { storage: Storage::Map(map), range, dtype, shape: shape.into() })
    }

    /// The bytes, little-endian, row-major, at any alignment.
    pub fn bytes(&self) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Map(map) => map,
            Storage::Vec(bytes) => bytes,
        };
        &all[self.range.clone()] // In bounds: checked by both constructors.
    }

    /// Type of one element.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Asks the system to bring the bytes into memory ahead of use. A hint: failure means nothing.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Storage::Map(map) = &self.storage {
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }
}

impl fmt::Debug for MappedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedTensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("bytes", &self.range.len())
            .finish_non_exhaustive()
    }
}

/// Maps a file for reading.
///
/// # Errors
/// [`Error::Io`], naming the file.
pub(crate) fn map_file(file: &File, path: &Path) -> Result<Arc<Mmap>, Error> {
    // SAFETY: the map is only read, and as bytes, for which every value is valid. That the file is
    // not changed or cut while mapped is promised by whoever keeps it: the worker's store renames
    // finished blobs into place and never writes to them, and a checkpoint is a model someone chose
    // to serve. Breaking that promise can change the bytes seen, or end the process with SIGBUS.
    let map = unsafe { Mmap::map(file) };
    map.map(Arc::new).map_err(|cause| Error::io("map", path, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_a_tensor_too() {
        let tensor = MappedTensor::from_vec(vec![1, 2, 3, 4], Dtype::BF16, vec![2]);
        assert_eq!(tensor.bytes(), [1, 2, 3, 4]);
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::BF16, &[2][..]));
        tensor.prefetch();
    }

    #[test]
    fn is_shared_between_threads() {
        fn check<T: Send + Sync + Clone + 'static>() {}
        check::<MappedTensor>();
    }
}
