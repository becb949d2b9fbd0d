//! What a worker keeps on disk: blobs named by the digest of their manifest, and blobs under way.
//!
//! Start at [`Store`]. Its promises:
//! - A blob is held only after every chunk of it matched the manifest it is named by.
//! - A worker killed at any instant loses at most the unverified end of the blobs under way.
//! - A blob that is in use is never evicted, and nothing outside the store's folders is touched, not even through a
//!   link that somebody planted there.
//!
//! Everything here blocks; an asynchronous caller moves it to a thread that may.

pub mod cli;
mod error;
mod evict;
mod folder;
mod folders;
mod held;
mod part;
mod reuse;
mod state;
mod tensors;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use cake_checkpoint::{Blob, Digest, Manifest};
use cake_platform::{DiskSpace, free_space};

pub use error::Error;
pub use held::{HeldBlob, PartialBlob};
pub use writer::Writer;

use folders::Folders;
use state::{State, Transfer};
use tensors::Tensors;

/// Disk space a transfer leaves to others, at most; a fiftieth of a small file system.
const MAX_RESERVE_BYTES: u64 = 64 << 20;

/// A content-addressed store of blobs in one directory. Clones are handles of the same store.
///
/// The directory is locked for this process until the last handle, [`Writer`] and [`InUse`] is
/// gone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folders: Folders,
    limit_bytes: Option<u64>,
    /// Also orders every change of the set of files.
    state: Mutex<State>,
    /// Closing it releases the store.
    _lock: File,
}

/// What [`Store::prune`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PruneReport {
    /// Whole blobs removed, least recently used first.
    pub removed: Vec<HeldBlob>,
    /// Partial blobs removed.
    pub removed_partial: Vec<PartialBlob>,
    /// Bytes freed by both.
    pub freed_bytes: u64,
    /// Bytes still stored.
    pub kept_bytes: u64,
}

/// A held blob, open for loading.
#[derive(Debug)]
pub struct OpenBlob {
    /// Its manifest.
    pub manifest: Manifest,
    /// Its mapped file; not yet verified.
    pub blob: Blob,
    /// Spares it from eviction for as long as this is kept.
    pub in_use: InUse,
}

/// Spares one blob from eviction until dropped.
#[derive(Debug)]
pub struct InUse {
    store: Store,
    name: Digest,
}

impl Store {
    /// Opens the store at `dir`, making its folders where they are missing, and takes it for this
    /// process. `limit_bytes` bounds what it keeps; least recently used blobs go first.
    ///
    /// # Errors
    /// [`Error::Unusable`] if the directory cannot be made or written, or a folder in it is a link, [`Error::Locked`] if another
    /// worker has it open, [`Error::Io`] if its content cannot be listed or put in order.
    pub fn open(dir: &Path, limit_bytes: Option<u64>) -> Result<Store, Error> {
        let folders = Folders::new(dir);
        folders.create()?;
        let lock = folders.lock()?;
        let found = folders.recover()?;
        let mut tensors = Tensors::default();
        for blob in &found.held {
            if let Some(manifest) = folders.read_manifest(&blob.name) {
                tensors.add(blob.name, &manifest);
            }
        }
        let state = State {
            tensors,
            held: found.held.into_iter().map(|blob| (blob.name, blob)).collect(),
            partial: found.partial.into_iter().map(|blob| (blob.name, blob)).collect(),
            ..State::default()
        };
        tracing::info!(
            store = %dir.display(), blobs = state.held.len(), partial = state.partial.len(),
            bytes = state.stored_bytes(), "store opened"
        );
        let inner = Inner { folders, limit_bytes, state: Mutex::new(state), _lock: lock };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// The blobs held, in the order of their names.
    pub fn list(&self) -> Vec<HeldBlob> {
        let state = self.state();
        let with_use =
            |blob: &HeldBlob| HeldBlob { in_use: state.pinned(&blob.name), ..blob.clone() };
        state.held.values().map(with_use).collect()
    }

    /// The partial blobs that nobody is writing, in the order of their names.
    pub fn list_partial(&self) -> Vec<PartialBlob> {
        self.state().partial.values().cloned().collect()
    }

    /// Whether the whole blob is here.
    pub fn holds(&self, name: &Digest) -> bool {
        self.state().held.contains_key(name)
    }

    /// The manifest of a held blob; `None` if the blob is not held.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the manifest on disk is no longer the one the blob is named by.
    pub fn manifest(&self, name: &Digest) -> Result<Option<Manifest>, Error> {
        if !self.holds(name) {
            return Ok(None);
        }
        let manifest = self.inner.folders.read_manifest(name);
        manifest.map(Some).ok_or(Error::Corrupt { blob: *name, cause: None })
    }

    /// Bytes of the blob that are already here and right, where a transfer would resume: all of a
    /// held blob, else the chunks at the start of a partial one that match their digests. Reads and
    /// hashes the partial blob; [`Store::begin`] does the same, so a caller that is about to write
    /// asks [`Writer::offset`] instead.
    ///
    /// # Errors
    /// [`Error::Io`] if the partial blob cannot be read.
    pub fn resume_at(&self, manifest: &Manifest) -> Result<u64, Error> {
        let name = manifest.name();
        if self.holds(&name) {
            return Ok(manifest.file_bytes);
        }
        part::verified_bytes(&self.inner.folders, &name, manifest)
    }

    /// Opens a held blob for loading, notes the use, and spares it from eviction for as long as the
    /// result's [`InUse`] is kept. The content is not verified yet: that is [`Blob::verify`].
    ///
    /// # Errors
    /// [`Error::NotHeld`], or [`Error::Corrupt`] if its files are not what they were.
    pub fn open_blob(&self, name: &Digest) -> Result<OpenBlob, Error> {
        let in_use = self.pin(name);
        if !self.note_use(name) {
            return Err(Error::NotHeld { blob: *name });
        }
        let folders = &self.inner.folders;
        let manifest =
            folders.read_manifest(name).ok_or(Error::Corrupt { blob: *name, cause: None })?;
        if folders.file_of(&folders.blob(name)).is_none() {
            return Err(Error::Corrupt { blob: *name, cause: None }); // Gone, or a link.
        }
        let blob = Blob::open(&folders.blob(name), &manifest)
            .map_err(|cause| Error::Corrupt { blob: *name, cause: Some(Box::new(cause)) })?;
        Ok(OpenBlob { manifest, blob, in_use })
    }

    /// Makes it the blob that would be evicted last. False if it is not held.
    pub fn note_use(&self, name: &Digest) -> bool {
        let now = SystemTime::now();
        match self.state().held.get_mut(name) {
            Some(blob) => blob.last_used = now,
            None => return false,
        }
        let folders = &self.inner.folders;
        folders.set_last_use(&folders.manifest(name), now);
        true
    }

    /// Spares a blob from eviction until the result is dropped, whether it is held, partial or yet
    /// to come. Pinning all blobs of a plan before the first transfer keeps one from evicting
    /// another.
    pub fn pin(&self, name: &Digest) -> InUse {
        *self.state().pins.entry(*name).or_default() += 1;
        InUse { store: self.clone(), name: *name }
    }

    /// Removes a held blob, as after a digest mismatch; that it is not held is fine. Whoever still
    /// has it mapped keeps its content.
    ///
    /// # Errors
    /// [`Error::Io`] if its file cannot be removed.
    pub fn discard(&self, name: &Digest) -> Result<(), Error> {
        let mut state = self.state();
        if state.held.contains_key(name) {
            self.inner.folders.remove_blob(name)?;
            state.held.remove(name);
            tracing::warn!(blob = %name, "blob discarded");
        }
        Ok(())
    }

    /// Removes blobs, partial ones included, least recently used first, until at most `keep` bytes
    /// are stored. What is in use or being received stays.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be removed; what was removed before it stays removed.
    pub fn prune(&self, keep: u64) -> Result<PruneReport, Error> {
        let mut state = self.state();
        let victims = evict::choose(&state.candidates(), state.stored_bytes(), keep).victims;
        let mut report = self.remove(&mut state, &victims)?;
        report.kept_bytes = state.stored_bytes();
        Ok(report)
    }

    /// Bytes stored, partial blobs included.
    pub fn stored_bytes(&self) -> u64 {
        self.state().stored_bytes()
    }

    /// The eviction limit, if there is one.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.inner.limit_bytes
    }

    /// Bytes that can still be written to the store's file system.
    ///
    /// # Errors
    /// [`Error::Io`] if the system cannot tell.
    pub fn free_disk(&self) -> Result<u64, Error> {
        Ok(self.disk()?.free_bytes)
    }

    fn disk(&self) -> Result<DiskSpace, Error> {
        let root = &self.inner.folders.root;
        free_space(root).map_err(|cause| Error::io("ask for the free space of", root, cause))
    }

    /// Every change under the lock is complete before anything that can panic, so a poisoned lock
    /// guards a sound state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises `transfer` room for a blob of which `verified_bytes` are on disk, evicting what the
    /// limit asks for. Refuses before anything is evicted.
    fn make_room(
        &self,
        transfer: &Transfer,
        blob_bytes: u64,
        verified_bytes: u64,
    ) -> Result<(), Error> {
        let path = &self.inner.folders.root;
        let disk = self.disk()?;
        let mut state = self.state();
        let mut eviction = evict::Choice::default();
        if let Some(limit_bytes) = self.inner.limit_bytes {
            let target = limit_bytes.checked_sub(blob_bytes);
            let stored_bytes = state.stored_bytes();
            eviction = evict::choose(&state.candidates(), stored_bytes, target.unwrap_or(0));
            if target.is_none_or(|target| eviction.kept_bytes > target) {
                let (path, in_use_bytes) = (path.clone(), eviction.kept_bytes);
                return Err(Error::StoreFull { path, blob_bytes, limit_bytes, in_use_bytes });
            }
        }
        let need_bytes = blob_bytes
            .saturating_sub(verified_bytes)
            .saturating_add(state.promised_bytes())
            .saturating_add(MAX_RESERVE_BYTES.min(disk.total_bytes / 50));
        if need_bytes > disk.free_bytes.saturating_add(eviction.freed_bytes) {
            let prunable_bytes = evict::evictable_bytes(&state.candidates());
            let (path, free_bytes) = (path.clone(), disk.free_bytes);
            return Err(Error::DiskFull { path, need_bytes, free_bytes, prunable_bytes });
        }
        self.remove(&mut state, &eviction.victims)?;
        transfer.blob_bytes.store(blob_bytes, Ordering::Relaxed);
        transfer.verified_bytes.store(verified_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Removes blobs from disk and from `state`.
    fn remove(&self, state: &mut State, victims: &[Digest]) -> Result<PruneReport, Error> {
        let mut report = PruneReport::default();
        for name in victims {
            if let Some(blob) = state.held.get(name) {
                self.inner.folders.remove_blob(name)?;
                tracing::info!(blob = %name, content = blob.label, bytes = blob.bytes, "evicted");
                report.freed_bytes += blob.bytes;
                report.removed.extend(state.held.remove(name));
            } else if let Some(blob) = state.partial.get(name) {
                self.inner.folders.remove_partial(name)?;
                tracing::info!(blob = %name, bytes = blob.bytes, "partial blob evicted");
                report.freed_bytes += blob.bytes;
                report.removed_partial.extend(state.partial.remove(name));
            }
        }
        Ok(report)
    }
}

impl InUse {
    /// The blob that is spared.
    pub fn name(&self) -> Digest {
        self.name
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.store.state();
        if let Some(count) = state.pins.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&self.name);
            }
        }
    }
}
