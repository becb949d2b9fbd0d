//! Blobs: one layer as a safetensors file of its own, named by the digest of its manifest.
//!
//! [`BlobSource`] streams a layer of a checkpoint, as it is or encoded, as blob bytes, [`Manifest`]
//! says what those bytes must be, [`Blob`] is the file on a worker's disk.

mod beside;
mod codes;
mod counts;
mod digest;
mod error;
mod loss;
mod manifest;
mod mapped;
mod source;
mod tensor;
#[cfg(test)]
mod tests;

pub use digest::{Digest, DigestParseError, Hasher};
pub use error::BlobError;
pub use manifest::{MAX_BLOB_TENSORS, MAX_MANIFEST_BYTES, Manifest, ManifestError, TensorEntry};
pub use mapped::Blob;
pub use source::BlobSource;
pub use tensor::{BlobTensor, encoded_tensors};
pub(crate) use tensor::{encode_matrix, encoded_bytes};

/// A blob is hashed, sent and resumed in pieces of at most this size; the header and each tensor are
/// cut into such pieces apart.
pub const CHUNK_BYTES: u64 = 1 << 20;
