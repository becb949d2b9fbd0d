//! The bytes of one tensor, shared: a piece of a mapped file, a copy of one, or a vector.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::anonymous::{self, Filled, Memory};
use crate::dtype::Dtype;
use crate::encoding::Encoding;
use crate::error::Error;
use crate::file_map::FileMap;

/// Where tensors begin that share memory: at the start of a cache line.
const ALIGNMENT: usize = 64;

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
    encoding: Option<Encoding>,
}

#[derive(Clone)]
enum Storage {
    /// A file: its pages are clean and can be dropped and read again.
    Map(Arc<FileMap>),
    /// Memory of this process, which nothing but this holds.
    Anonymous(Arc<Mmap>),
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
        Self::of(Storage::Vec(Arc::new(bytes)), range, dtype, shape.into())
    }

    /// A tensor whose bytes were filled in by the caller.
    ///
    /// # Errors
    /// If the system does not keep the memory.
    ///
    /// # Panics
    /// If `memory` is not exactly what `dtype` and `shape` need.
    pub fn from_memory(memory: Memory, dtype: Dtype, shape: Vec<u64>) -> io::Result<Self> {
        assert_eq!(
            dtype.tensor_bytes(&shape),
            Ok(memory.len() as u64),
            "the bytes of a {dtype} tensor of shape {shape:?}"
        );
        Ok(Self::from_filled(memory.fill_ends()?, dtype, shape.into()))
    }

    fn from_filled(filled: Filled, dtype: Dtype, shape: Arc<[u64]>) -> Self {
        let (range, storage) = match filled {
            Filled::Small(bytes) => (0..bytes.len(), Storage::Vec(Arc::new(bytes))),
            Filled::Huge(map, range) => (range, Storage::Anonymous(Arc::new(map))),
        };
        Self::of(storage, range, dtype, shape)
    }

    fn of(storage: Storage, range: Range<usize>, dtype: Dtype, shape: Arc<[u64]>) -> Self {
        MappedTensor { storage, range, dtype, shape, encoding: None }
    }

    /// The piece `range` of a map; `None` when the map does not reach that far.
    pub(crate) fn from_map(
        map: Arc<FileMap>,
        range: Range<usize>,
        dtype: Dtype,
        shape: &[u64],
    ) -> Option<Self> {
        map.get(range.clone())?;
        Some(Self::of(Storage::Map(map), range, dtype, shape.into()))
    }

    /// The same as the weight of a matrix that is stored so.
    #[must_use]
    pub fn with_encoding(self, encoding: Option<Encoding>) -> Self {
        Self { encoding, ..self }
    }

    /// How the matrix is stored whose weight this is, as far as whoever made the tensor said; `None` for every other
    /// tensor.
    pub fn encoding(&self) -> Option<Encoding> {
        self.encoding
    }

    /// The bytes, little-endian, row-major, at any alignment.
    pub fn bytes(&self) -> &[u8] {
        let all: &[u8] = match &self.storage {
            Storage::Map(map) => map,
            Storage::Anonymous(map) => map,
            Storage::Vec(bytes) => bytes,
        };
        &all[self.range.clone()] // In bounds: checked by every constructor.
    }

    /// The same tensor in memory of its own, in huge pages where the system gives them, at the start
    /// of one. Of a mapped file each piece is given back once it is copied: at any time no more than
    /// one piece of [`HUGE_PAGE_BYTES`](crate::HUGE_PAGE_BYTES) is resident twice. `self` and
    /// its clones stay usable; what is read of them then comes from the file again.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn to_anonymous(&self) -> io::Result<MappedTensor> {
        let mut give_back = |piece: Range<usize>| self.give_back(piece);
        let copy = anonymous::copy(self.bytes(), &mut give_back)?;
        let copy = Self::from_filled(copy, self.dtype, self.shape.clone());
        Ok(copy.with_encoding(self.encoding))
    }

    /// Puts tensors behind each other into memory that they share, as [`MappedTensor::to_anonymous`] does with one:
    /// small ones then lie in huge pages, too. The memory is kept until all of them are gone.
    ///
    /// # Errors
    /// If the system gives no memory; all are then where they were.
    pub fn gather(tensors: &mut [&mut MappedTensor]) -> io::Result<()> {
        let mut ends = 0usize;
        let place = |tensor: &&mut MappedTensor| {
            let start = ends.next_multiple_of(ALIGNMENT);
            ends = start + tensor.range.len();
            start..ends
        };
        let places: Vec<Range<usize>> = tensors.iter().map(place).collect();
        let mut memory = Memory::zeroed(ends)?;
        for (tensor, place) in tensors.iter().zip(&places) {
            let mut give_back = |piece: Range<usize>| tensor.give_back(piece);
            anonymous::copy_into(tensor.bytes(), &mut memory[place.clone()], &mut give_back);
        }
        let (first, storage) = match memory.fill_ends()? {
            Filled::Small(bytes) => (0, Storage::Vec(Arc::new(bytes))),
            Filled::Huge(map, range) => (range.start, Storage::Anonymous(Arc::new(map))),
        };
        for (tensor, place) in tensors.iter_mut().zip(places) {
            tensor.range = first + place.start..first + place.end;
            tensor.storage = storage.clone();
        }
        Ok(())
    }

    /// Whether the bytes are in memory of the process, in a piece that is too small for huge pages.
    pub fn in_small_pages(&self) -> bool {
        matches!(self.storage, Storage::Vec(_))
    }

    /// Whether the bytes are a piece of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.storage, Storage::Map(_))
    }

    /// The file that the bytes are a piece of, if they are.
    pub fn file(&self) -> Option<&Arc<FileMap>> {
        match &self.storage {
            Storage::Map(map) => Some(map),
            Storage::Anonymous(_) | Storage::Vec(_) => None,
        }
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
        if let Storage::Map(map) = &self.storage {
            map.prefetch(self.range.start, self.range.len());
        }
    }

    /// Lets the pages of `piece` of the bytes go, if they are a file's. A hint.
    fn give_back(&self, piece: Range<usize>) {
        if let Storage::Map(map) = &self.storage {
            map.give_back(self.range.start + piece.start, piece.len());
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
pub(crate) fn map_file(file: &File, path: &Path) -> Result<Arc<FileMap>, Error> {
    let map = FileMap::new(file, path);
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
    fn a_copy_has_the_same_bytes_and_needs_nothing_of_the_file() {
        const BYTES: usize = (5 << 20) + 4098;
        let source: Vec<u8> = (0..BYTES).map(|index| (index * 7 % 253) as u8).collect();
        let (start, end) = (65, BYTES - 1); // Neither at the start of a page.
        let (_directory, map) = file(&source);
        let shape = [(end - start) as u64];
        let tensor = MappedTensor::from_map(map.clone(), start..end, Dtype::U8, &shape)
            .expect("inside the file");
        assert!(tensor.bytes() == &source[start..end] && tensor.is_mapped());
        assert!(resident(&map) > end - start - 8192, "read just now");
        let copy = tensor.to_anonymous().expect("memory");
        // What is around the last piece may come back with it.
        let left = resident(&map);
        assert!(!cfg!(target_os = "linux") || left <= 1 << 20, "{left} bytes of the map remain");
        assert!(copy.bytes() == &source[start..end] && !copy.is_mapped());
        assert_eq!(copy.bytes().as_ptr() as usize % 64, 0);
        assert_eq!((copy.dtype(), copy.shape()), (Dtype::U8, &shape[..]));
        assert!(tensor.bytes() == copy.bytes(), "the map is as it was");
        let (clone, again) = (copy.clone(), copy.to_anonymous().expect("memory"));
        copy.prefetch();
        drop(copy);
        assert!(clone.bytes() == &source[start..end] && again.bytes() == clone.bytes());
    }

    /// A file with these bytes, mapped.
    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<FileMap>) {
        let directory = tempfile::tempdir().expect("a temporary folder");
        let path = directory.path().join("bytes");
        std::fs::write(&path, bytes).expect("written");
        let file = File::open(&path).expect("there");
        (directory, map_file(&file, &path).expect("mapped"))
    }

    /// Bytes of the map that this process holds; where the system does not tell, those of the map.
    fn resident(map: &FileMap) -> usize {
        let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return map.len() };
        let start = format!("{:x}-", map.as_ptr() as usize);
        let own = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let rss = own.into_iter().find_map(|line| line.strip_prefix("Rss:")).expect("mapped");
        rss.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
    }

    #[test]
    fn gathered_tensors_have_the_same_bytes_and_share_memory() {
        let source: Vec<u8> = (0..5 << 20).map(|index| (index * 11 % 251) as u8).collect();
        let (_directory, map) = file(&source);
        let mapped = |range: Range<usize>| {
            let shape = [range.len() as u64];
            MappedTensor::from_map(map.clone(), range, Dtype::U8, &shape).expect("inside")
        };
        let vector = MappedTensor::from_vec(vec![9; 1001], Dtype::U8, vec![1001]);
        assert!(vector.in_small_pages() && !mapped(0..7).in_small_pages());
        let before = [mapped(3..(3 << 20)), vector, mapped(3 << 20..5 << 20), mapped(7..7)];
        let mut after = before.clone();
        MappedTensor::gather(&mut after.each_mut()).expect("memory");
        let left = resident(&map);
        assert!(!cfg!(target_os = "linux") || left <= 1 << 20, "{left} bytes of the map remain");
        for (before, after) in before.iter().zip(&after) {
            assert!(before.bytes() == after.bytes() && before.shape() == after.shape());
            assert!(!after.is_mapped() && !after.in_small_pages());
            assert_eq!(after.bytes().as_ptr() as usize % ALIGNMENT, 0);
        }
        let start = |tensor: &MappedTensor| tensor.bytes().as_ptr() as usize;
        let room =
            (3usize << 20).next_multiple_of(ALIGNMENT) + 1001usize.next_multiple_of(ALIGNMENT);
        assert_eq!(start(&after[2]) - start(&after[0]), room, "behind each other");
        MappedTensor::gather(&mut []).expect("nothing");
        let mut small = [MappedTensor::from_vec(vec![1; 10], Dtype::U8, vec![10])];
        MappedTensor::gather(&mut small.each_mut()).expect("memory");
        assert!(small[0].in_small_pages() && small[0].bytes() == [1; 10]);
    }

    #[test]
    fn is_shared_between_threads() {
        fn check<T: Send + Sync + Clone + 'static>() {}
        check::<MappedTensor>();
    }
}
