//! Why a file is not a blob.

use std::path::PathBuf;

use super::digest::Digest;
use crate::file_map::DamagedFile;

/// Why a file is not the blob its manifest describes.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum BlobError {
    #[error("{}: blob has {found} bytes, its manifest says {expected}", path.display())]
    WrongLength { path: PathBuf, expected: u64, found: u64 },
    #[error("{}: the blob's header is not the one its manifest describes", path.display())]
    WrongHeader { path: PathBuf },
    #[error(
        "{}: chunk {chunk} (at byte {offset}) has digest {found}, expected {expected}",
        path.display()
    )]
    WrongDigest { path: PathBuf, chunk: u64, offset: u64, expected: Digest, found: Digest },
    #[error(transparent)]
    Damaged(#[from] DamagedFile),
}
