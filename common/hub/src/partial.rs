//! A file that is being fetched, and the journal of how much of each of its parts is there.
//!
//! The file has its whole length from the beginning, so its name is not the one that the Hub's own tools give to what
//! they append to: they would take it for finished. The journal, beside it, is
//!
//! ```text
//! "cakepart"   length of the file: u64   length of a part: u64   of each part, bytes from its start on that are there: u64
//! ```
//!
//! little-endian. A number is written after the bytes that it counts: a process that is killed between the two fetches
//! these again.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cake_platform::is_at;

use crate::cache::Folder;
use crate::error::Error;
use crate::files::{make_directory, read_exact_at, write_all_at};
use crate::listing::RemoteFile;

/// Length of a part, the last one may be shorter: what one connection fetches at a time. Long enough that asking takes
/// no time beside it, short enough that a model's last parts keep all connections busy.
pub(crate) const PART_BYTES: u64 = 16 << 20;
const MAGIC: &[u8; 8] = b"cakepart";
const HEADER_BYTES: u64 = 24;
const NUMBER_BYTES: u64 = 8;
/// What the name of an unfinished file ends with.
pub(crate) const INCOMPLETE: &str = ".incomplete";
/// What comes between a digest and that, in ours.
const OWN: &str = ".cake";
/// What the name of a journal ends with, after that of its file.
const PARTS: &str = ".parts";

/// A file that is being fetched, locked against other processes.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    journal_path: PathBuf,
    file: File,
    journal: File,
    bytes: u64,
    /// Of each part, bytes from its start on that are there. Each has one writer at a time.
    done: Vec<AtomicU64>,
}

impl Partial {
    /// Opens or makes it, with what an earlier run left.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process has it; [`Error::Io`].
    pub(crate) fn open(folder: &Folder, remote: &RemoteFile) -> Result<Partial, Error> {
        make_directory(&folder.blobs())?;
        let (path, journal_path) = paths(folder, remote);
        let opened = |path: &Path| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            options.open(path).map_err(|cause| Error::io("open", path, cause))
        };
        let file = opened(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy { file: remote.name.clone(), path });
            }
            // A file system without locks: then nobody is kept out.
            Err(TryLockError::Error(cause)) if cause.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(cause)) => return Err(Error::io("lock", &path, cause)),
        }
        if !is_at(&file, &path) {
            // Another process has finished it meanwhile: what is open is a whole blob now, under its own name.
            return Err(Error::Busy { file: remote.name.clone(), path });
        }
        let journal = opened(&journal_path)?;
        let length = file.metadata().map_err(|cause| Error::io("read", &path, cause))?.len();
        let known = (length == remote.bytes).then(|| numbers(&journal, remote.bytes)).flatten();
        let fresh = known.is_none();
        let done = known.unwrap_or_else(|| vec![0; part_count(remote.bytes)]);
        let done = done.into_iter().map(AtomicU64::new).collect();
        let partial = Partial { path, journal_path, file, journal, bytes: remote.bytes, done };
        if fresh {
            partial.begin()?;
        }
        Ok(partial)
    }

    /// Makes both files as they are when nothing is there. The journal is the last to say so.
    fn begin(&self) -> Result<(), Error> {
        let failed = |cause| Error::io("write", &self.path, cause);
        self.journal.set_len(0).map_err(failed)?;
        self.file.set_len(0).map_err(failed)?;
        self.file.set_len(self.bytes).map_err(failed)?;
        self.journal
            .set_len(HEADER_BYTES + NUMBER_BYTES * self.done.len() as u64)
            .map_err(failed)?;
        let header = [&MAGIC[..], &self.bytes.to_le_bytes(), &PART_BYTES.to_le_bytes()].concat();
        write_all_at(&self.journal, &header, 0).map_err(failed)
    }

    pub(crate) fn parts(&self) -> usize {
        self.done.len()
    }

    /// First byte of a part that is not there, and the part's end.
    pub(crate) fn missing(&self, part: usize) -> (u64, u64) {
        let (start, end) = part_range(self.bytes, part);
        (start + self.done[part].load(Ordering::Acquire), end)
    }

    pub(crate) fn is_complete(&self, part: usize) -> bool {
        let (next, end) = self.missing(part);
        next == end
    }

    /// Bytes that are there.
    pub(crate) fn there(&self) -> u64 {
        self.done.iter().map(|done| done.load(Ordering::Acquire)).sum()
    }

    /// Appends to a part.
    pub(crate) fn append(&self, part: usize, bytes: &[u8]) -> Result<(), Error> {
        let failed = |cause| Error::io("write", &self.path, cause);
        let (next, end) = self.missing(part);
        let fitting = &bytes[..bytes.len().min((end - next) as usize)];
        write_all_at(&self.file, fitting, next).map_err(failed)?;
        let done = next + fitting.len() as u64 - part_range(self.bytes, part).0;
        self.done[part].store(done, Ordering::Release);
        let place = HEADER_BYTES + NUMBER_BYTES * part as u64;
        write_all_at(&self.journal, &done.to_le_bytes(), place).map_err(failed)
    }

    /// Of bytes that begin at `offset`, appends those that are missing; their parts have all that comes before. Returns
    /// how many.
    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let mut filled = 0;
        let mut at = offset;
        while at < (offset + bytes.len() as u64).min(self.bytes) {
            let part = (at / PART_BYTES) as usize;
            let (next, end) = self.missing(part);
            let stop = end.min(offset + bytes.len() as u64);
            if (at..stop).contains(&next) {
                self.append(part, &bytes[(next - offset) as usize..(stop - offset) as usize])?;
                filled += stop - next;
            }
            at = stop;
        }
        Ok(filled)
    }

    /// Fills `buffer` with bytes that are there.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        read_exact_at(&self.file, buffer, offset)
            .map_err(|cause| Error::io("read", &self.path, cause))
    }

    /// Gives the file, which is whole and checked, its name.
    pub(crate) fn finish(&self, blob: &Path) -> Result<(), Error> {
        // The name is believed from now on, also after a loss of power.
        self.file.sync_all().map_err(|cause| Error::io("write", &self.path, cause))?;
        std::fs::rename(&self.path, blob)
            .map_err(|cause| Error::io("rename", &self.path, cause))?;
        std::fs::remove_file(&self.journal_path).ok(); // Without its file it says nothing.
        Ok(())
    }

    /// Deletes it: it is not what it should be.
    pub(crate) fn discard(&self) {
        std::fs::remove_file(&self.journal_path).ok();
        std::fs::remove_file(&self.path).ok();
    }
}

/// How many bytes of a file an earlier run left.
pub(crate) fn left_bytes(folder: &Folder, remote: &RemoteFile) -> u64 {
    let (path, journal_path) = paths(folder, remote);
    let whole = path.metadata().is_ok_and(|meta| meta.len() == remote.bytes);
    let journal = whole.then(|| File::open(journal_path).ok()).flatten();
    journal.and_then(|journal| numbers(&journal, remote.bytes)).map_or(0, |done| done.iter().sum())
}

fn paths(folder: &Folder, remote: &RemoteFile) -> (PathBuf, PathBuf) {
    let name = format!("{}{OWN}{INCOMPLETE}", remote.hash);
    (folder.blobs().join(&name), folder.blobs().join(format!("{name}{PARTS}")))
}

fn part_count(bytes: u64) -> usize {
    bytes.div_ceil(PART_BYTES) as usize // Bounded: no file is longer than what a listing may say.
}

/// First byte of a part, and its end.
fn part_range(bytes: u64, part: usize) -> (u64, u64) {
    let start = part as u64 * PART_BYTES;
    (start, (start + PART_BYTES).min(bytes))
}

/// What a journal of a file of so many bytes says; `None` if it is none.
fn numbers(mut journal: &File, bytes: u64) -> Option<Vec<u64>> {
    let count = part_count(bytes);
    let length = HEADER_BYTES + NUMBER_BYTES * count as u64;
    if journal.metadata().ok()?.len() != length {
        return None;
    }
    let mut text = Vec::with_capacity(length as usize);
    journal.read_to_end(&mut text).ok()?;
    let (header, rest) = text.split_at_checked(HEADER_BYTES as usize)?;
    let expected = [&MAGIC[..], &bytes.to_le_bytes(), &PART_BYTES.to_le_bytes()].concat();
    let (numbers, _) = rest.as_chunks::<8>();
    if header != expected || numbers.len() != count {
        return None;
    }
    let numbers = numbers.iter().map(|number| u64::from_le_bytes(*number)).enumerate();
    // What cannot be true counts for nothing.
    let checked = numbers.map(|(part, done)| {
        let (start, end) = part_range(bytes, part);
        if done <= end - start { done } else { 0 }
    });
    Some(checked.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hash;

    fn place(bytes: u64) -> (tempfile::TempDir, Folder, RemoteFile) {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/name".parse().unwrap());
        let hash = Hash::parse(&"a".repeat(64)).unwrap();
        (cache, folder, RemoteFile { name: "m".into(), bytes, hash })
    }

    #[test]
    fn what_was_appended_is_there_the_next_time() {
        let bytes = PART_BYTES + 10;
        let (_cache, folder, remote) = place(bytes);
        let partial = Partial::open(&folder, &remote).unwrap();
        assert_eq!((partial.parts(), partial.there()), (2, 0));
        partial.append(1, b"abc").unwrap();
        partial.append(1, b"de").unwrap();
        assert_eq!(partial.missing(1), (PART_BYTES + 5, bytes));
        assert_eq!(left_bytes(&folder, &remote), 5);
        drop(partial);
        let partial = Partial::open(&folder, &remote).unwrap();
        assert_eq!((partial.there(), partial.missing(0)), (5, (0, PART_BYTES)));
        let mut found = [0; 5];
        partial.read(PART_BYTES, &mut found).unwrap();
        assert_eq!(&found, b"abcde");
        partial.append(1, b"more than there is room for").unwrap();
        assert!(partial.is_complete(1) && !partial.is_complete(0));
        partial.finish(&folder.blob(&remote.hash)).unwrap();
        assert!(folder.has(&remote));
        assert_eq!(std::fs::read_dir(folder.blobs()).unwrap().count(), 1);
    }

    #[test]
    fn a_whole_stream_fills_what_is_missing() {
        let bytes = 2 * PART_BYTES + 3;
        let (_cache, folder, remote) = place(bytes);
        let partial = Partial::open(&folder, &remote).unwrap();
        partial.append(1, b"xy").unwrap();
        let piece = vec![7; 1 << 20];
        let (mut at, mut filled) = (0, 0);
        while at < bytes {
            let end = (at + piece.len() as u64).min(bytes);
            filled += partial.fill(at, &piece[..(end - at) as usize]).unwrap();
            at = end;
        }
        assert_eq!((filled, partial.there()), (bytes - 2, bytes));
        let mut found = [0; 3];
        partial.read(PART_BYTES, &mut found).unwrap();
        assert_eq!(found, [b'x', b'y', 7]);
        assert_eq!(partial.fill(0, &piece).unwrap(), 0);
    }

    #[test]
    fn a_journal_that_cannot_be_true_counts_for_nothing() {
        let (_cache, folder, remote) = place(PART_BYTES * 2);
        drop(Partial::open(&folder, &remote).unwrap());
        let (path, journal_path) = paths(&folder, &remote);
        let mut journal = std::fs::read(&journal_path).unwrap();
        journal[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        journal[32..40].copy_from_slice(&9_u64.to_le_bytes());
        std::fs::write(&journal_path, &journal).unwrap();
        assert_eq!(left_bytes(&folder, &remote), 9);
        for broken in [&journal[..39], &[0; 40], b""] {
            std::fs::write(&journal_path, broken).unwrap();
            assert_eq!(left_bytes(&folder, &remote), 0);
            assert_eq!(Partial::open(&folder, &remote).unwrap().there(), 0);
        }
        std::fs::write(&path, "short").unwrap();
        std::fs::write(&journal_path, &journal).unwrap();
        assert_eq!(Partial::open(&folder, &remote).unwrap().there(), 0);
    }

    #[test]
    fn two_do_not_fetch_the_same_file() {
        let (_cache, folder, remote) = place(5);
        let first = Partial::open(&folder, &remote).unwrap();
        assert!(matches!(Partial::open(&folder, &remote), Err(Error::Busy { .. })));
        drop(first);
        Partial::open(&folder, &remote).unwrap().discard();
        assert_eq!(std::fs::read_dir(folder.blobs()).unwrap().count(), 0);
    }
}
