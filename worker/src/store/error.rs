//! What can go wrong in the store.

use std::io;
use std::path::{Path, PathBuf};

use cake_checkpoint::Digest;
use cake_checkpoint::units::format_bytes;

/// Why the store could not do what was asked. The text is a whole sentence: it includes the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory cannot be created or written.
    #[error("cannot use {} as a store: {cause}", .path.display())]
    Unusable {
        /// The path that was refused: the store or a folder in it.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Another worker has this store open.
    #[error(
        "the store {} is in use by another worker{}", .path.display(),
        .holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    Locked {
        /// The store's directory.
        path: PathBuf,
        /// Process id of the worker that has it, where known.
        holder: Option<u32>,
    },
    /// A file of the store could not be read or written.
    #[error("cannot {action} {}: {cause}", .path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The blob is not in the store.
    #[error("blob {blob} is not held")]
    NotHeld {
        /// The blob asked for.
        blob: Digest,
    },
    /// Someone else is writing this blob.
    #[error("blob {blob} is already being received")]
    Busy {
        /// The blob in question.
        blob: Digest,
    },
    /// The file system has no room for a blob.
    #[error(
        "no room on the disk of {}: {} more needed, {} free{}", .path.display(),
        format_bytes(*.need_bytes), format_bytes(*.free_bytes),
        if *.prunable_bytes > 0 {
            format!(" (pruning the store would free {})", format_bytes(*.prunable_bytes))
        } else {
            String::new()
        }
    )]
    DiskFull {
        /// The store's directory.
        path: PathBuf,
        /// Bytes still to be written, the reserve and what other transfers still need included.
        need_bytes: u64,
        /// Bytes the file system has left.
        free_bytes: u64,
        /// Bytes in blobs that nobody uses.
        prunable_bytes: u64,
    },
    /// The store's own limit leaves no room, even without every blob that is not in use.
    #[error(
        "blob of {} does not fit the store {}: its limit is {}, of which {} are in use",
        format_bytes(*.blob_bytes), .path.display(), format_bytes(*.limit_bytes),
        format_bytes(*.in_use_bytes)
    )]
    StoreFull {
        /// The store's directory.
        path: PathBuf,
        /// Size of the blob that was to be stored.
        blob_bytes: u64,
        /// The eviction limit.
        limit_bytes: u64,
        /// Bytes that cannot be evicted now.
        in_use_bytes: u64,
    },
    /// Received bytes are not those that the manifest promises.
    #[error("chunk {chunk} of blob {blob} (at byte {offset}) does not match its digest")]
    WrongDigest {
        /// The blob being received.
        blob: Digest,
        /// Number of the chunk, of at most 1 MiB, from 0.
        chunk: usize,
        /// Where it starts in the blob, and where to send from again.
        offset: u64,
    },
    /// A part copied from another blob of the store is not what it was.
    #[error(
        "blob {blob} does not come out right at byte {offset} with tensors that other blobs here \
         hold; it must be sent whole"
    )]
    Spoilt {
        /// The blob being received.
        blob: Digest,
        /// Where to send from.
        offset: u64,
    },
    /// The file of a blob under way is not what was verified of it: something that was given up
    /// could not be cut off, or someone else changed the file.
    #[error(
        "the file of blob {blob} does not end with the {verified_bytes} bytes that are verified; \
         it must be begun again"
    )]
    Torn {
        /// The blob being received.
        blob: Digest,
        /// Its bytes that matched their digests.
        verified_bytes: u64,
    },
    /// The blob's bytes match their digests but do not start with the header that its tensors need.
    #[error("blob {blob} does not start with the header of its own tensors")]
    WrongHeader {
        /// The blob that was received.
        blob: Digest,
    },
    /// More bytes arrived than the blob has.
    #[error("{extra_bytes} bytes too many for blob {blob} of {blob_bytes} bytes")]
    TooLong {
        /// The blob being received.
        blob: Digest,
        /// Its size.
        blob_bytes: u64,
        /// Bytes past its end.
        extra_bytes: u64,
    },
    /// The transfer ended before the blob did.
    #[error("blob {blob} is incomplete: {have_bytes} of {blob_bytes} bytes")]
    Incomplete {
        /// The blob being received.
        blob: Digest,
        /// Bytes that arrived.
        have_bytes: u64,
        /// Bytes it has.
        blob_bytes: u64,
    },
    /// A held blob is damaged on disk; discard it and ask for it again.
    #[error(
        "blob {blob} is damaged: {}",
        .cause.as_ref().map_or_else(
            || "its manifest is not the one it is named by".to_owned(),
            ToString::to_string
        )
    )]
    Corrupt {
        /// The damaged blob.
        blob: Digest,
        /// What is wrong with it; `None` if its manifest is not the one it is named by.
        cause: Option<Box<cake_checkpoint::Error>>,
    },
}

impl Error {
    /// A failed file operation. A full disk has its own variant.
    pub(super) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), cause }
    }

    /// A failed write of `need_bytes` more bytes to the store at `root`.
    pub(super) fn write(root: &Path, path: &Path, need_bytes: u64, cause: io::Error) -> Error {
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull {
                path: root.to_owned(),
                need_bytes,
                free_bytes: cake_platform::free_space(root).map_or(0, |space| space.free_bytes),
                prunable_bytes: 0,
            },
            _ => Error::io("write", path, cause),
        }
    }
}
