//! Where the tensors of the blobs held lie.

use std::collections::HashMap;

use cake_checkpoint::{Digest, Manifest};

/// Smaller tensors are sent: asking for the bytes around them would cost as much.
const LEAST_BYTES: u64 = 64 << 10;

/// Where tensors lie in the blobs held. An entry may be out of date; then its file is not there.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    places: HashMap<Digest, Place>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) blob: Digest,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Tensors {
    /// Notes the tensors of a held blob.
    pub(super) fn add(&mut self, blob: Digest, manifest: &Manifest) {
        for (digest, range) in manifest.tensor_digests().into_iter().zip(manifest.tensor_ranges()) {
            let bytes = range.end - range.start;
            if bytes >= LEAST_BYTES {
                self.places.insert(digest, Place { blob, offset: range.start, bytes });
            }
        }
    }
    /// Where this tensor was last seen.
    pub(super) fn place(&self, digest: &Digest) -> Option<&Place> {
        self.places.get(digest)
    }
}
