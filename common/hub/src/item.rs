//! One file on its way: what is there of it, where it comes from, how far it is hashed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, TryLockError};

use ureq::http::Uri;

use crate::cache::Folder;
use crate::error::Error;
use crate::hash::Hasher;
use crate::listing::RemoteFile;
use crate::partial::{PART_BYTES, Partial};

/// What is read at once to be hashed.
const PIECE_BYTES: u64 = 1 << 20;
/// What a Git LFS pointer begins with.
pub(crate) const POINTER: &[u8] = b"version https://git-lfs";
/// Longest pointer.
const MAX_POINTER_BYTES: u64 = 1024;

/// A file on its way.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) remote: RemoteFile,
    /// Where the hub has it.
    pub(crate) url: String,
    pub(crate) partial: Partial,
    /// Where the hub led to the last time, if elsewhere: asked there at once, the hub is spared a question per part.
    pub(crate) location: Mutex<Option<Uri>>,
    /// Shared by those who fetch parts; whoever fetches all of it by itself is alone.
    pub(crate) turns: RwLock<()>,
    /// Parts that were missing when it was opened.
    pub(crate) todo: Vec<usize>,
    /// How many of these are not done yet.
    left: AtomicUsize,
    hashed: Mutex<Hashed>,
}

/// The beginning of a file, hashed. It follows what arrives, so that little is left to do at the end, and what is read
/// for it is still in memory.
#[derive(Debug)]
struct Hashed {
    hasher: Hasher,
    bytes: u64,
}

impl Item {
    pub(crate) fn open(folder: &Folder, remote: RemoteFile, url: String) -> Result<Item, Error> {
        let partial = Partial::open(folder, &remote)?;
        let todo: Vec<usize> =
            (0..partial.parts()).filter(|part| !partial.is_complete(*part)).collect();
        let hasher = remote.hash.hasher(remote.bytes);
        Ok(Item {
            url,
            location: Mutex::default(),
            turns: RwLock::default(),
            left: AtomicUsize::new(todo.len()),
            todo,
            hashed: Mutex::new(Hashed { hasher, bytes: 0 }),
            partial,
            remote,
        })
    }

    /// Notes that a part of `todo` is done; whether it was the last.
    pub(crate) fn part_done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Hashes what follows what is hashed, unless somebody does so already.
    pub(crate) fn hash_on(&self, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        match self.hashed.try_lock() {
            Ok(mut hashed) => self.advance(&mut hashed, stop),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => Ok(()),
        }
    }

    fn advance(&self, hashed: &mut Hashed, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let mut buffer = vec![0; PIECE_BYTES.min(self.remote.bytes) as usize];
        while hashed.bytes < self.remote.bytes && !stop() {
            let part = (hashed.bytes / PART_BYTES) as usize;
            if !self.partial.is_complete(part) {
                break;
            }
            let left = self.partial.missing(part).1 - hashed.bytes;
            let piece = &mut buffer[..PIECE_BYTES.min(left) as usize];
            self.partial.read(hashed.bytes, piece)?;
            hashed.hasher.update(piece);
            hashed.bytes += piece.len() as u64;
        }
        Ok(())
    }

    /// Checks the file, of which all parts are done, and gives it its name; not if it is to stop.
    ///
    /// # Errors
    /// [`Error::WrongHash`], after which the file is gone; [`Error::LfsPointer`]; [`Error::Io`].
    pub(crate) fn finish(&self, folder: &Folder, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        self.advance(&mut hashed, stop)?;
        if hashed.bytes < self.remote.bytes {
            return Ok(());
        }
        let found = hashed.hasher.clone().finish();
        let RemoteFile { name, bytes, hash } = &self.remote;
        if found != hash.name() {
            self.partial.discard();
            let (expected, kind) = (hash.name().to_owned(), hash.kind());
            return Err(Error::WrongHash { file: name.clone(), kind, expected, found });
        }
        if *bytes <= MAX_POINTER_BYTES {
            let mut text = vec![0; *bytes as usize];
            self.partial.read(0, &mut text)?;
            if text.starts_with(POINTER) {
                self.partial.discard();
                return Err(Error::LfsPointer { file: name.clone() });
            }
        }
        self.partial.finish(&folder.blob(hash))
    }
}
