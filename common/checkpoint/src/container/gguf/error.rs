//! What is wrong with a GGUF file.

use super::kind::Kind;
use super::limits::{
    MAX_ALL_ITEMS, MAX_HEADER_BYTES, MAX_ITEMS, MAX_KEYS, MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS,
};
use super::tokenizer::TokenizerError;
use super::value::{ValueError, short};

/// Why a GGUF file is not read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum GgufError {
    #[error("file begins with {found:?}, not as a GGUF file")]
    NotGguf { found: Vec<u8> },
    #[error("GGUF version {version} is not read, only 2 and 3")]
    Version { version: u32 },
    #[error("the file is big-endian, which is not read")]
    BigEndian,
    #[error("file ends early: {what} at byte {at} needs {need} bytes, the file has {file_bytes}")]
    Cut { what: String, at: u64, need: u64, file_bytes: u64 },
    #[error("{count} {what} have no room in the {left} bytes that are left of the file")]
    NoRoom { what: String, count: u64, left: u64 },
    #[error("what comes before the data is longer than {MAX_HEADER_BYTES} bytes")]
    HeaderTooLong,
    #[error("header says {tensors} tensors, more than {MAX_TENSORS}")]
    TooManyTensors { tensors: u64 },
    #[error("header says {keys} keys, more than {MAX_KEYS}")]
    TooManyKeys { keys: u64 },
    #[error("{what} has {bytes} bytes")]
    NameLength { what: String, bytes: u64 },
    #[error("{what} is not UTF-8")]
    NameNotUtf8 { what: String },

    #[error("metadata have the key {key:?} twice")]
    DuplicateKey { key: String },
    #[error("{key:?} in the metadata has a value of unknown type {found}")]
    ValueType { key: String, found: u32 },
    #[error("{key:?} in the metadata is a list of lists, which is not read")]
    Nested { key: String },
    #[error("{key:?} in the metadata is a list of {items} items, more than {MAX_ITEMS}")]
    TooManyItems { key: String, items: u64 },
    #[error(
        "the lists of the metadata have {items} items up to {key:?}, more than {MAX_ALL_ITEMS}"
    )]
    ManyItems { key: String, items: usize },
    #[error("{key:?} in the metadata has a number past 63 bits in its list")]
    LargeItem { key: String },
    #[error(
        "\"general.alignment\" in the metadata must be a u32 and a power of two, and is {found}"
    )]
    Alignment { found: String },

    #[error("the name of tensor {index} has {bytes} bytes, more than {MAX_NAME_BYTES}")]
    NameTooLong { index: u64, bytes: usize },
    #[error("tensor {tensor:?} is there twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has {dimensions} dimensions; 1 to {MAX_RANK} are read")]
    Dimensions { tensor: String, dimensions: u32 },
    #[error("tensor {tensor:?} {shape:?} has a dimension of 0")]
    Empty { tensor: String, shape: Vec<u64> },
    #[error("tensor {tensor:?} is of type {id}{}, which is not read", named(name))]
    UnknownKind { tensor: String, id: u32, name: Option<&'static str> },
    #[error(
        "tensor {tensor:?} of {kind} {shape:?} has no size: it is too large, or its rows are not whole blocks"
    )]
    NoSize { tensor: String, kind: Kind, shape: Vec<u64> },
    #[error(
        "tensor {tensor:?} starts {found} bytes into the data, expected {expected}: tensors follow each other, each at a multiple of {alignment}"
    )]
    Offset { tensor: String, found: u64, expected: u64, alignment: u64 },
    #[error("file is truncated: tensor {tensor:?} ends at byte {end}, the file at {file_bytes}")]
    Truncated { tensor: String, end: u64, file_bytes: u64 },

    #[error("the file is part {} of {count} of a model; name the first part", number + 1)]
    NotFirst { number: u64, count: u64 },
    #[error("the file says that it is part {} of {count}", number + 1)]
    NoSuchPart { number: u64, count: u64 },
    #[error(
        "the file is the first of {count} parts, but is not called NAME-00001-of-{count:05}.gguf, by which the others are found"
    )]
    PartName { count: u64 },
    #[error("part {} of {count} is missing: {file}", number + 1)]
    MissingPart { number: u64, count: u64, file: String },
    #[error("expected part {} of {count}, found a file that says it is part {} of {found_count}", number + 1, found + 1)]
    OtherPart { number: u64, count: u64, found: u64, found_count: u64 },
    #[error("the parts have {found} tensors, the first one says {expected}")]
    TensorCount { expected: u64, found: u64 },
    #[error("the directory has several models in GGUF files; name one of them: {}", files.join(", "))]
    SeveralModels { files: Vec<String> },

    #[error(transparent)]
    Value(#[from] ValueError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(
        "architecture {:?} is not run; of GGUF files these are: {supported}",
        short(architecture)
    )]
    Architecture { architecture: String, supported: String },
    #[error("{key:?} in the metadata is {found}, expected {expected}")]
    Unsupported { key: String, found: String, expected: String },
    #[error("{key:?} in the metadata is {found}; nothing is known of this key in {architecture}")]
    UnknownKey { key: String, found: String, architecture: &'static str },
    #[error("tensor {tensor:?} is none that {architecture} has")]
    UnknownTensor { tensor: String, architecture: &'static str },
    #[error("tensor {tensor:?} is missing")]
    MissingTensor { tensor: &'static str },
    #[error("tensor {tensor:?} belongs to a layer past the {layers} that the metadata say")]
    NoSuchLayer { tensor: String, layers: u64 },
    #[error("tensor {tensor:?} must be {expected}, and is {kind} {shape:?}")]
    TensorForm { tensor: String, expected: &'static str, kind: Kind, shape: Vec<u64> },
    #[error("tensor {tensor:?} has divisors of frequencies that are not as Llama 3.1 makes them")]
    Divisors { tensor: String },
    #[error("there are {tokens} tokens, and token_embd has {rows} rows")]
    Tokens { tokens: u64, rows: u64 },
}

fn named(name: &Option<&'static str>) -> String {
    name.map(|name| format!(" ({name})")).unwrap_or_default()
}
