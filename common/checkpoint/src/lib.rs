//! The bytes of a model: containers, catalog, families, configuration and blobs.
//!
//! Start reading at [`Checkpoint`], which opens a checkpoint and knows every tensor of it, then at
//! [`BlobSource`] (one layer streamed as a file of its own) and [`Blob`] (such a file on a worker's
//! disk, mapped).
//!
//! Invariants:
//! * Pure and synchronous: no network, no runtime, no tensor math but what encodings do.
//! * Sizes come from headers, never from a formula over the configuration.
//! * Tensor bytes are streamed in bounded pieces or mapped, never collected; a tensor may start at
//!   any address, so no slice of a file is ever cast to wider numbers.
//! * A file that is cut while it is mapped reads as zeros and is known to ([`file_map`]); whoever computed with it asks.
//! * Bytes from a file or a peer never panic, and sizes are bounded before anything is allocated.
//! * The text of an error is a whole sentence: a wrapper prints its cause, so callers need not walk
//!   a chain to tell a person which file, which tensor, what was expected and what was found.

mod anonymous;
pub mod blob;
pub mod catalog;
pub mod container;
pub mod digest_cache;
pub mod error;
#[cfg(unix)]
mod fault;
mod file;
pub mod file_map;
pub mod generation;
pub mod layout;
mod listed;
pub mod locate;
pub mod mapped;
mod mapped_matrix;
pub mod model;
pub mod range;
mod room;
#[cfg(test)]
mod testing;
pub mod units;
mod watch;

pub use anonymous::{HUGE_PAGE_BYTES, Memory};
pub use blob::{
    Blob, BlobError, BlobSource, BlobTensor, CHUNK_BYTES, Digest, DigestParseError, Hasher,
    MAX_BLOB_TENSORS, MAX_MANIFEST_BYTES, Manifest, ManifestError, TensorEntry, encoded_tensors,
};
/// How weights are stored.
pub use cake_encoding as encoding;
pub use cake_encoding::dtype;
pub use catalog::{CatalogError, Checkpoint, MatrixTensors, Tensor};
pub use container::safetensors::WeightsError;
pub use container::safetensors::header::{FileError, Header, HeaderError, TensorInfo};
pub use container::{
    Across, CONTAINERS, CheckpointFile, Checksum, Container, Contents, Lies, Places, Stored,
    StoredTensor, Strides, TextFiles,
};
pub use digest_cache::DigestCache;
pub use dtype::Dtype;
pub use encoding::{
    Affine, AprType, Bnb, Codec, ColumnSquares, Counts, EncodeError, Encoding, EncodingParseError,
    FloatType, Fp4, Fp8, GgmlType, Importance, Integer, Levels, ModuleFormat, Part, PartSpec,
    RowsAt, Scheme, SchemeParseError, Unpacked, e8m0,
};
pub use error::Error;
pub use file_map::{DamagedFile, FileMap};
pub use generation::GenerationConfig;
pub use locate::{
    KeptError, KeptModel, LocateError, Location, OllamaError, hub_caches, hub_folder, keeper, kept,
    locate, locate_in,
};
pub use mapped::MappedTensor;
pub use mapped_matrix::MappedMatrix;
pub use model::{
    Activation, AttentionSpec, Beginning, Branch, ClampedGate, ConfigError, ConvolutionSpec,
    CorrectionSpec, DeltaInputs, DeltaSpec, ExpertProjectionsSpec, ExpertSlice, ExpertsSpec,
    FAMILIES, Family, Fault, GateUp, GivenSpec, Joined, Kept, KvDtype, LatentKeys, LatentQueries,
    LatentSpec, LayerSpec, LayerStreamsSpec, LinearSpec, LogitsSpec, LowRankSpec, MAX_SPEC_BYTES,
    MambaSpec, MlpSpec, ModelSpec, Name, NormKind, NormSpec, Op, OutputGate, PositionScale,
    Quantization, Role, Rope, RopeScaling, RotaryPairs, RotationSpec, RouterGroups, RouterScores,
    RouterSpec, ShortConvolutionSpec, SpecError, StreamsSpec, TensorKind, TensorSpec,
    WithGivenSpec, same_vector, unstack,
};
pub use range::LayerRange;
pub use watch::Watch;
