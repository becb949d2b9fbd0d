//! What the store knows about its files while it is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cake_checkpoint::Digest;

use super::tensors::Tensors;
use super::{HeldBlob, PartialBlob, evict};

/// What the store knows; a digest is in at most one of the first three maps.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) held: BTreeMap<Digest, HeldBlob>,
    pub(super) partial: BTreeMap<Digest, PartialBlob>,
    pub(super) writing: BTreeMap<Digest, Arc<Transfer>>,
    /// Where the tensors of held blobs are.
    pub(super) tensors: Tensors,
    /// Blobs that did not come out right with tensors of others: these are sent whole.
    pub(super) sent_whole: BTreeSet<Digest>,
    /// How many [`InUse`] guards each blob has.
    pub(super) pins: BTreeMap<Digest, usize>,
}

/// Disk space that one writer has been promised.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// Size of the blob once there is room for it, 0 before.
    pub(super) blob_bytes: AtomicU64,
    /// How much of it is on disk and verified.
    pub(super) verified_bytes: AtomicU64,
}

impl State {
    pub(super) fn pinned(&self, name: &Digest) -> bool {
        self.pins.contains_key(name)
    }

    /// Bytes of everything here, blobs being received at their full size.
    pub(super) fn stored_bytes(&self) -> u64 {
        let held = self.held.values().map(|blob| blob.bytes);
        let partial = self.partial.values().map(|blob| blob.bytes);
        let writing =
            self.writing.values().map(|transfer| transfer.blob_bytes.load(Ordering::Relaxed));
        held.chain(partial).chain(writing).fold(0, u64::saturating_add)
    }

    /// Bytes that running transfers have yet to write.
    pub(super) fn promised_bytes(&self) -> u64 {
        let missing = self.writing.values().map(|transfer| {
            let verified_bytes = transfer.verified_bytes.load(Ordering::Relaxed);
            transfer.blob_bytes.load(Ordering::Relaxed).saturating_sub(verified_bytes)
        });
        missing.fold(0, u64::saturating_add)
    }

    pub(super) fn candidates(&self) -> Vec<evict::Candidate> {
        let held = self.held.values().map(|blob| (blob.name, blob.bytes, blob.last_used));
        let partial = self.partial.values().map(|blob| (blob.name, blob.bytes, blob.last_used));
        let candidate = |(name, bytes, last_used)| {
            let spared = self.pinned(&name);
            evict::Candidate { name, bytes, last_used, spared }
        };
        held.chain(partial).map(candidate).collect()
    }
}
