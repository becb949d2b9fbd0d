//! What of a new blob need not be sent, since the store holds it already in other blobs.

use std::fs::File;
use std::ops::Range;

use cake_checkpoint::{Digest, Manifest};

use super::folder::For;
use super::{InUse, Store};

/// A part of a blob, and where it comes from.
#[derive(Debug)]
pub(super) struct Segment {
    /// Bytes of the new blob.
    pub(super) range: Range<u64>,
    /// `None` if it must be sent.
    pub(super) source: Option<Source>,
}

/// The same bytes in a held blob.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: File,
    /// Where they begin there.
    pub(super) offset: u64,
    _in_use: InUse, // Making room for the new blob must not remove the old one first.
}

/// The whole blob in order, neighbours of one kind of origin joined where they must be sent.
pub(super) fn segments(store: &Store, manifest: &Manifest) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut end = 0; // Of what the segments cover.
    for (digest, range) in manifest.tensor_digests().into_iter().zip(manifest.tensor_ranges()) {
        if let Some(source) = source(store, &digest, range.end - range.start) {
            if end < range.start {
                segments.push(Segment { range: end..range.start, source: None });
            }
            end = range.end;
            segments.push(Segment { range, source: Some(source) });
        }
    }
    if end < manifest.file_bytes {
        segments.push(Segment { range: end..manifest.file_bytes, source: None });
    }
    segments
}

fn source(store: &Store, digest: &Digest, bytes: u64) -> Option<Source> {
    let place = *store.state().tensors.place(digest).filter(|place| place.bytes == bytes)?;
    let in_use = store.pin(&place.blob);
    let folders = &store.inner.folders;
    let file = folders.open(&folders.blob(&place.blob), For::Reading).ok()?;
    Some(Source { file, offset: place.offset, _in_use: in_use })
}
