//! A file mapped for reading that may be cut, or whose disk may fail, while it is mapped.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

#[cfg(unix)]
use crate::fault::Guard;

/// A file mapped for reading, as bytes.
///
/// Its pages are read from the file when they are touched. If that fails, because the file was cut or the disk does
/// not give them, all of the map reads as zeros from then on; if only a part of its last page was cut off, that part
/// does. [`FileMap::is_damaged`] tells: whoever computed with its bytes asks afterwards ([`Watch`](crate::Watch)). Where the system is
/// no Unix, such a read ends the process.
#[derive(Debug)]
pub struct FileMap {
    // Before `map`: what is not mapped any more must not be guarded.
    #[cfg(unix)]
    guard: Guard,
    map: Mmap,
    /// To ask how long it is by now.
    file: File,
    path: PathBuf,
}

/// Bytes that were read may have been zeros in place of a file's.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{} was cut, or could not be read, while its weights were in use", path.display())]
pub struct DamagedFile {
    /// The file.
    pub path: PathBuf,
}

impl FileMap {
    /// Maps a whole file, which is at `path`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(file: &File, path: &Path) -> io::Result<FileMap> {
        // SAFETY: the map is only read, and as bytes, for which every value is valid. That the file is not changed
        // while it is mapped is promised by whoever keeps it: the worker's store renames finished blobs into place and
        // never writes to them, and a checkpoint is a model someone chose to serve. Breaking that promise changes the
        // bytes seen, which are checked nowhere by their value; that they are gone is what `guard` is for.
        let map = unsafe { Mmap::map(file) }?;
        #[cfg(unix)]
        let guard = Guard::over(map.as_ptr() as usize, map.len());
        Ok(FileMap {
            #[cfg(unix)]
            guard,
            map,
            file: file.try_clone()?,
            path: path.to_owned(),
        })
    }

    /// Whether bytes of the file could not be read, or are gone: they were zeros instead.
    pub fn is_damaged(&self) -> bool {
        #[cfg(unix)]
        if self.guard.was_hit() {
            return true;
        }
        self.file.metadata().map_or(true, |file| file.len() < self.map.len() as u64)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the system to bring these bytes into memory ahead of use. A hint: failure means nothing.
    pub(crate) fn prefetch(&self, start: usize, length: usize) {
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, length);
        #[cfg(not(unix))]
        let _ = (start, length);
    }

    /// Lets the pages of these bytes go. A hint.
    pub(crate) fn give_back(&self, start: usize, length: usize) {
        // SAFETY: this is a shared, read-only map of a file, or zeros in its place, so nothing written is lost: the
        // next read brings the same bytes again.
        #[cfg(unix)]
        let _ = unsafe {
            self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length)
        };
        #[cfg(not(unix))]
        let _ = (start, length);
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Dtype, MappedTensor, Watch};

    /// A file of so many bytes, all 7, mapped.
    fn mapped(folder: &Path, name: &str, bytes: usize) -> (File, Arc<FileMap>) {
        let path = folder.join(name);
        std::fs::write(&path, vec![7; bytes]).expect("written");
        let file = File::options().read(true).write(true).open(&path).expect("there");
        let map = FileMap::new(&file, &path).expect("mapped");
        (file, Arc::new(map))
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_mapped_reads_as_zeros_and_is_known_to_be_damaged() {
        const BYTES: usize = (1 << 20) + 5;
        let folder = tempfile::tempdir().expect("a folder");
        let (file, cut) = mapped(folder.path(), "cut", BYTES);
        let (_, whole) = mapped(folder.path(), "whole", BYTES);
        let tensor = |map: &Arc<FileMap>| {
            let shape = [BYTES as u64];
            MappedTensor::from_map(map.clone(), 0..BYTES, Dtype::U8, &shape).expect("inside")
        };
        let mut watch = Watch::default();
        for map in [&whole, &cut, &cut] {
            watch.add(&tensor(map));
        }
        watch.add(&MappedTensor::from_vec(vec![1], Dtype::U8, vec![1]));
        assert_eq!(watch.files(), 2);
        assert!(cut.iter().all(|byte| *byte == 7) && watch.check().is_ok());
        file.set_len(1).expect("cut");
        // From several threads at once, as a stage reads.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let bytes = &cut;
                scope.spawn(move || assert_eq!(bytes[BYTES - 1 - thread * (256 << 10)], 0));
            }
        });
        assert!(cut.is_damaged() && cut.iter().all(|byte| *byte == 0));
        assert!(!whole.is_damaged() && whole.iter().all(|byte| *byte == 7));
        let error = watch.check().expect_err("damaged").to_string();
        assert!(error.contains(&folder.path().join("cut").display().to_string()), "{error}");
        // Where it was mapped, another file may be by now.
        drop((cut, watch));
        let (_, next) = mapped(folder.path(), "next", BYTES);
        assert!(!next.is_damaged() && next.iter().all(|byte| *byte == 7));
    }

    /// No read fails within a page of which something is left.
    #[test]
    fn a_file_that_loses_a_few_bytes_is_known_to_be_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, map) = mapped(folder.path(), "cut", 5000);
        assert!(!map.is_damaged());
        file.set_len(4990).expect("cut");
        assert_eq!(map[4999], 0);
        assert!(map.is_damaged());
    }

    #[test]
    fn many_files_are_guarded_and_let_go_while_others_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    for round in 0..50 {
                        let (file, map) = mapped(folder, &format!("{thread}"), 10_000);
                        if round % 2 == 0 {
                            file.set_len(0).expect("cut");
                        }
                        assert_eq!(map[9_999], if round % 2 == 0 { 0 } else { 7 });
                        assert_eq!(map.is_damaged(), round % 2 == 0);
                    }
                });
            }
        });
    }
}
