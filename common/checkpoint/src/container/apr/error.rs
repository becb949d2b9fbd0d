//! What is wrong with an APR file.

use super::kind::Kind;
use super::layout::{
    ALIGNMENT, HEADER_BYTES, MAJOR_VERSION, MAX_INDEX_BYTES, MAX_METADATA_BYTES, MAX_NAME_BYTES,
    MAX_RANK, MAX_TENSORS,
};

/// Why an APR file is not read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum AprError {
    #[error("file of {file_bytes} bytes is too short for an APR header of {HEADER_BYTES}")]
    TooShort { file_bytes: u64 },
    #[error("file begins with {found:?}, not as an APR file")]
    NotApr { found: [u8; 4] },
    #[error("APR version {major}.{minor} is not read, only {MAJOR_VERSION}")]
    Version { major: u8, minor: u8 },
    #[error("header's checksum is {found:08x}, its bytes make {expected:08x}; the file is damaged")]
    HeaderChecksum { expected: u32, found: u32 },
    #[error("the file is {what}, which is not read")]
    Unsupported { what: &'static str },
    #[error("flags {bits:#06x} are not known")]
    UnknownFlags { bits: u16 },

    #[error("metadata of {bytes} bytes are longer than {MAX_METADATA_BYTES}")]
    MetadataTooLong { bytes: u32 },
    #[error("index of {bytes} bytes is longer than {MAX_INDEX_BYTES}")]
    IndexTooLong { bytes: u64 },
    #[error("{section} starts at byte {offset}, which is no multiple of {ALIGNMENT}")]
    SectionUnaligned { section: &'static str, offset: u64 },
    #[error("{section} starts at byte {start}, before the end of what precedes it at {before}")]
    SectionOverlaps { section: &'static str, start: u64, before: u64 },
    #[error("{section} ends at byte {end}, but the file has {file_bytes} bytes")]
    SectionOutside { section: &'static str, end: u64, file_bytes: u64 },
    #[error("header says {tensors} tensors, more than {MAX_TENSORS}")]
    TooManyTensors { tensors: u32 },
    #[error("header says {tensors} tensors; an index of {bytes} bytes has no room for them")]
    NoRoomForTensors { tensors: u32, bytes: u64 },

    #[error("the index ends inside its entry {entry}")]
    EntryCut { entry: u32 },
    #[error("the name of entry {entry} has {bytes} bytes, more than {MAX_NAME_BYTES}")]
    NameTooLong { entry: u32, bytes: u16 },
    #[error("the name of entry {entry} is not UTF-8")]
    NameNotUtf8 { entry: u32 },
    #[error("tensor {tensor:?} comes after {before:?}; names must ascend, none twice")]
    NotSorted { before: String, tensor: String },
    #[error(
        "tensor {tensor:?} has element type 2: bf16 of a writer before 0.27.5, which nothing reads today; convert the model again"
    )]
    FormerBf16 { tensor: String },
    #[error("tensor {tensor:?} has unknown element type {id}")]
    UnknownKind { tensor: String, id: u8 },
    #[error("tensor {tensor:?} has {dimensions} dimensions, more than {MAX_RANK}")]
    TooManyDimensions { tensor: String, dimensions: u8 },
    #[error(
        "tensor {tensor:?} of {kind} {shape:?} has no size: it is too large, or its rows are not whole blocks"
    )]
    NoSize { tensor: String, kind: Kind, shape: Vec<u64> },
    #[error("tensor {tensor:?} of {kind} {shape:?} needs {expected} bytes, the index says {found}")]
    WrongSize { tensor: String, kind: Kind, shape: Vec<u64>, expected: u64, found: u64 },
    #[error(
        "tensor {tensor:?} starts {offset} bytes into the data, which is no multiple of {ALIGNMENT}"
    )]
    TensorUnaligned { tensor: String, offset: u64 },
    #[error("tensor {tensor:?} starts at byte {start}, before {before:?} ends at {end}")]
    Overlap { tensor: String, before: String, start: u64, end: u64 },
    #[error("tensor {tensor:?} ends past all numbers")]
    TensorOutside { tensor: String },
    #[error("file is truncated: its tensors end at byte {expected}, the file at {found}")]
    Truncated { expected: u64, found: u64 },
    #[error(
        "file has {found} bytes; with its last tensor and a checksum it would end at byte {expected}"
    )]
    TrailingData { expected: u64, found: u64 },
    #[error("tensor {tensor:?} is in the file, and also the name of the scale of another one")]
    ScaleNameTaken { tensor: String },

    #[error("metadata are not one JSON object: {0}")]
    Metadata(serde_json::Error),
    #[error("metadata have the key {key:?} twice")]
    DuplicateKey { key: String },
    #[error("metadata lack {key:?}, which says what the model is")]
    MissingKey { key: &'static str },
    #[error("{key:?} in the metadata must be {expected}")]
    WrongType { key: &'static str, expected: &'static str },
    #[error(
        "\"rope_type\" {rope_type} in the metadata is not read: only 2, which rotates the halves of a head"
    )]
    RopeType { rope_type: String },
}
