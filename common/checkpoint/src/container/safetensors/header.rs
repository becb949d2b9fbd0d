//! The header of a safetensors file: read, checked in full, nothing trusted.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::dtype::{Dtype, SizeError};
use crate::file::read_exact_at;

/// Longest JSON header accepted, inclusive: the reference implementation's limit. Stops a hostile
/// length from allocating.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Most tensors accepted in one file; the largest checkpoints have about 90,000 in all.
const MAX_TENSORS: usize = 500_000;
/// Most dimensions accepted; the largest in use is 5.
const MAX_RANK: usize = 16;
/// How much of a file is looked at to tell what it is when it is not safetensors.
const SNIFFED_BYTES: u64 = 512;

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name; may be any text, even empty.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, relative to the start of the data.
    pub start: u64,
    /// First byte after it, relative to the start of the data.
    pub end: u64,
}

/// A checked header: tensors fill the data without holes and the file ends where they do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// In offset order.
    pub tensors: Vec<TensorInfo>,
    /// Where the data starts in the file; any number, odd ones too.
    pub data_start: u64,
    /// BLAKE3 of everything before the data.
    pub digest: [u8; 32],
    /// Free text about the file; `None` when absent or null.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// What is wrong with a header.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum HeaderError {
    #[error("file of {file_bytes} bytes is too short for a safetensors header (8 bytes and JSON)")]
    TooShort { file_bytes: u64 },
    #[error(
        "this is a Git LFS pointer, not the weights it points to; run `git lfs pull` in the checkpoint's directory"
    )]
    LfsPointer,
    #[error("this is a web page, not weights; the download must have failed")]
    HtmlPage,
    #[error(
        "header of {header_bytes} bytes is longer than {MAX_HEADER_BYTES}; this is probably not a safetensors file"
    )]
    TooLong { header_bytes: u64 },
    #[error(
        "header ends at byte {header_end}, but the file has {file_bytes} bytes; it is truncated or not a safetensors file"
    )]
    PastEnd { header_end: u64, file_bytes: u64 },
    #[error("header is empty")]
    Empty,
    #[error("header is not UTF-8")]
    NotUtf8,
    #[error("header is not one JSON object: {0}")]
    Json(serde_json::Error),
    #[error("__metadata__ must map strings to strings: {0}")]
    Metadata(serde_json::Error),
    #[error("__metadata__ appears twice")]
    DuplicateMetadata,
    #[error("tensor {tensor:?} appears twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has unknown dtype {dtype:?}")]
    UnknownDtype { tensor: String, dtype: String },
    #[error("tensor {tensor:?} is malformed: {cause}")]
    Malformed { tensor: String, cause: serde_json::Error },
    #[error("more than {MAX_TENSORS} tensors")]
    TooManyTensors,
    /// In offset order each tensor must start where the previous one ended: no hole, no overlap.
    #[error("tensor {tensor:?} starts at {start}, expected {expected_start}")]
    NotTiled { tensor: String, expected_start: u64, start: u64 },
    #[error("tensor {tensor:?} ends at {end}, before its start {start}")]
    Backwards { tensor: String, start: u64, end: u64 },
    #[error("tensor {tensor:?} of {dtype} {shape:?} has no size: {cause}")]
    NoSize { tensor: String, dtype: Dtype, shape: Vec<u64>, cause: SizeError },
    #[error(
        "tensor {tensor:?} of {dtype} {shape:?} needs {expected} bytes, its offsets give {found}"
    )]
    WrongSize { tensor: String, dtype: Dtype, shape: Vec<u64>, expected: u64, found: u64 },
    #[error("file is truncated: its tensors end at byte {expected}, the file at {found}")]
    Truncated { expected: u64, found: u64 },
    #[error("file has {} bytes after its last tensor, which ends at byte {expected}", found - expected)]
    TrailingData { expected: u64, found: u64 },
}

/// A checkpoint file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("cannot read {}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// Not a valid safetensors file.
    #[error("{}: {cause}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: HeaderError,
    },
}

impl Header {
    /// Opens a file and reads and checks its header; the data is not touched.
    ///
    /// # Errors
    /// [`FileError`], naming the file.
    pub fn read(path: &Path) -> Result<Header, FileError> {
        let io = |cause| FileError::Io { path: path.into(), cause };
        let file = File::open(path).map_err(io)?;
        Header::read_from(&file, path).map(|(header, _)| header)
    }

    /// The same from an open file; also its length.
    pub(crate) fn read_from(file: &File, path: &Path) -> Result<(Header, u64), FileError> {
        let io = |cause| FileError::Io { path: path.into(), cause };
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut bytes = vec![0; file_bytes.min(SNIFFED_BYTES) as usize];
        read_exact_at(file, &mut bytes, 0).map_err(io)?;
        if let Some(prefix) = bytes.first_chunk::<8>() {
            let header_bytes = u64::from_le_bytes(*prefix);
            let fits = header_bytes <= MAX_HEADER_BYTES && header_bytes + 8 <= file_bytes;
            let have = bytes.len();
            if fits && header_bytes as usize + 8 > have {
                bytes.resize(header_bytes as usize + 8, 0);
                read_exact_at(file, &mut bytes[have..], have as u64).map_err(io)?;
            }
        }
        Header::parse(&bytes, file_bytes)
            .map(|header| (header, file_bytes))
            .map_err(|cause| FileError::Header { path: path.into(), cause })
    }

    /// Checks a header: the 8-byte length, the JSON, and how it fits a file of `file_bytes`.
    ///
    /// `prefix_and_json` may go on into the data.
    ///
    /// # Errors
    /// [`HeaderError`]; the first rule broken, in the reference implementation's order.
    pub fn parse(prefix_and_json: &[u8], file_bytes: u64) -> Result<Header, HeaderError> {
        let prefix =
            prefix_and_json.first_chunk::<8>().ok_or(HeaderError::TooShort { file_bytes })?;
        let header_bytes = u64::from_le_bytes(*prefix);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(sniff(prefix_and_json).unwrap_or(HeaderError::TooLong { header_bytes }));
        }
        let data_start = 8 + header_bytes; // Cannot overflow: bounded just above.
        let json = prefix_and_json
            .get(8..data_start as usize)
            .filter(|_| data_start <= file_bytes)
            .ok_or(HeaderError::PastEnd { header_end: data_start, file_bytes })?;
        let digest = *blake3::hash(&prefix_and_json[..data_start as usize]).as_bytes();
        let (metadata, mut tensors) = parse_json(json)?;
        tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
        let data_bytes = check_tiling(&tensors)?;
        let (expected, found) = (data_start.saturating_add(data_bytes), file_bytes);
        match expected.cmp(&found) {
            std::cmp::Ordering::Greater => Err(HeaderError::Truncated { expected, found }),
            std::cmp::Ordering::Less => Err(HeaderError::TrailingData { expected, found }),
            std::cmp::Ordering::Equal => Ok(Header { tensors, data_start, digest, metadata }),
        }
    }
}

/// What a file is whose first bytes make no sense as a length, if it is a common mistake.
fn sniff(bytes: &[u8]) -> Option<HeaderError> {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(SNIFFED_BYTES as usize)]);
    let start = start.trim_start().to_ascii_lowercase();
    if start.starts_with("version https://git-lfs") {
        return Some(HeaderError::LfsPointer);
    }
    let page = ["<!doctype", "<html", "<head", "<?xml"].iter().any(|tag| start.starts_with(tag));
    page.then_some(HeaderError::HtmlPage)
}

/// Checks that tensors, sorted by offset, fill the data; returns its length.
fn check_tiling(tensors: &[TensorInfo]) -> Result<u64, HeaderError> {
    let mut expected_start = 0;
    for TensorInfo { name, dtype, shape, start, end } in tensors {
        let (tensor, dtype, shape) = (|| name.clone(), *dtype, || shape.clone());
        let (start, end) = (*start, *end);
        if start != expected_start {
            return Err(HeaderError::NotTiled { tensor: tensor(), expected_start, start });
        }
        let found = end.checked_sub(start).ok_or_else(|| HeaderError::Backwards {
            tensor: tensor(),
            start,
            end,
        })?;
        let expected = dtype.tensor_bytes(&shape()).map_err(|cause| HeaderError::NoSize {
            tensor: tensor(),
            dtype,
            shape: shape(),
            cause,
        })?;
        if found != expected {
            let (tensor, shape) = (tensor(), shape());
            return Err(HeaderError::WrongSize { tensor, dtype, shape, expected, found });
        }
        expected_start = end;
    }
    Ok(expected_start)
}

type Parsed = (Option<BTreeMap<String, String>>, Vec<TensorInfo>);

fn parse_json(json: &[u8]) -> Result<Parsed, HeaderError> {
    if json.is_empty() {
        return Err(HeaderError::Empty);
    }
    let text = std::str::from_utf8(json).map_err(|_| HeaderError::NotUtf8)?;
    let mut fault = None;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = HeaderSeed { fault: &mut fault }
        .deserialize(&mut deserializer)
        .and_then(|parsed| deserializer.end().map(|()| parsed));
    parsed.map_err(|cause| match fault {
        None => HeaderError::Json(cause),
        Some(Fault::Metadata) => HeaderError::Metadata(cause),
        Some(Fault::DuplicateMetadata) => HeaderError::DuplicateMetadata,
        Some(Fault::DuplicateTensor(tensor)) => HeaderError::DuplicateTensor { tensor },
        Some(Fault::UnknownDtype(tensor, dtype)) => HeaderError::UnknownDtype { tensor, dtype },
        Some(Fault::Malformed(tensor)) => HeaderError::Malformed { tensor, cause },
        Some(Fault::TooManyTensors) => HeaderError::TooManyTensors,
    })
}

/// What was being read when the JSON reader gave up; turns its error into a typed one.
enum Fault {
    Metadata,
    DuplicateMetadata,
    DuplicateTensor(String),
    UnknownDtype(String, String),
    Malformed(String),
    TooManyTensors,
}

/// Reads the header's object entry by entry, so that a name given twice is seen: a map would keep
/// one of the two, and another reader might keep the other.
struct HeaderSeed<'a> {
    fault: &'a mut Option<Fault>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Parsed;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let stop = || de::Error::custom("refused");
        let mut metadata = None;
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if metadata.is_some() {
                    *self.fault = Some(Fault::DuplicateMetadata);
                    return Err(stop());
                }
                *self.fault = Some(Fault::Metadata);
                metadata = Some(map.next_value::<Option<BTreeMap<String, String>>>()?);
                *self.fault = None;
                continue;
            }
            if names.len() >= MAX_TENSORS {
                *self.fault = Some(Fault::TooManyTensors);
                return Err(stop());
            }
            if !names.insert(name.clone()) {
                *self.fault = Some(Fault::DuplicateTensor(name));
                return Err(stop());
            }
            *self.fault = Some(Fault::Malformed(name.clone()));
            let raw: RawTensor = map.next_value()?;
            let Some(dtype) = Dtype::parse(&raw.dtype) else {
                *self.fault = Some(Fault::UnknownDtype(name, raw.dtype));
                return Err(stop());
            };
            *self.fault = None;
            let ((start, end), shape) = (raw.data_offsets, raw.shape.0);
            tensors.push(TensorInfo { name, dtype, shape, start, end });
        }
        Ok((metadata.flatten(), tensors))
    }
}

/// A shape of bounded rank.
struct Dimensions(Vec<u64>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bounded;
        impl<'de> Visitor<'de> for Bounded {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX_RANK} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dimensions, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() == MAX_RANK {
                        return Err(de::Error::invalid_length(MAX_RANK + 1, &self));
                    }
                    shape.push(dimension);
                }
                Ok(Dimensions(shape))
            }
        }
        deserializer.deserialize_seq(Bounded)
    }
}
