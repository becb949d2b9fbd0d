//! Everything of an APR file that comes before its data, read and checked.

use std::fs::File;
use std::path::Path;

use serde_json::{Map, Value};

use super::config::config;
use super::error::AprError;
use super::header::Header;
use super::index::{self, TensorInfo};
use super::layout::{FOOTER_BYTES, HEADER_BYTES, flags};
use super::metadata;
use super::places::places;
use crate::container::tensor::StoredTensor;
use crate::encoding::Part;
use crate::error::Error;
use crate::file::read_exact_at;

/// The output matrix, as the Hub's models call it; without it the embedding serves as head.
const OUTPUT: &str = "lm_head";

/// What a file says of itself. Its tensors are in it and share no bytes, and it ends behind them.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    /// The header.
    pub header: Header,
    /// The metadata.
    pub metadata: Map<String, Value>,
    /// The tensors, by name.
    pub tensors: Vec<TensorInfo>,
    /// Whether a checksum of all bytes ends the file.
    pub has_footer: bool,
    /// BLAKE3 of everything before the data.
    pub digest: [u8; 32],
}

impl Head {
    /// Opens a file and reads everything before its data; also the handle, and the file's length.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Apr`] for what is wrong in the file.
    pub fn read(path: &Path) -> Result<(Head, File, u64), Error> {
        let failed = |action| move |cause| Error::io(action, path, cause);
        let wrong = |cause| Error::Apr { path: path.into(), cause };
        let file = File::open(path).map_err(failed("open"))?;
        let file_bytes = file.metadata().map_err(failed("read"))?.len();
        let mut bytes = vec![0; file_bytes.min(HEADER_BYTES) as usize];
        read_exact_at(&file, &mut bytes, 0).map_err(failed("read"))?;
        let header = Header::parse(&bytes, file_bytes).map_err(wrong)?;
        let have = bytes.len();
        bytes.resize(header.data_start as usize, 0); // Bounded when the header was checked.
        read_exact_at(&file, &mut bytes[have..], have as u64).map_err(failed("read"))?;
        let head = Head::parse(&bytes, file_bytes).map_err(wrong)?;
        Ok((head, file, file_bytes))
    }

    /// Checks the beginning of a file of `file_bytes`; `bytes` may go on into the data.
    ///
    /// # Errors
    /// [`AprError`]; the first rule broken.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Head, AprError> {
        let header = Header::parse(bytes, file_bytes)?;
        let data_start = header.data_start;
        let have = bytes.len() as u64;
        let section = |section, start: u64, end: u64| {
            let range = start as usize..end as usize; // Bounded when the header was checked.
            let outside = AprError::SectionOutside { section, end, file_bytes: have };
            bytes.get(range).ok_or(outside)
        };
        let json = section("metadata", header.metadata.start, header.metadata.end)?;
        let entries = section("index", header.index.start, header.index.end)?;
        let metadata = metadata::parse(json)?;
        let tensors = index::parse(entries, header.tensors, data_start)?;
        let end = index::check_places(&tensors, data_start)?;
        let expected = end.saturating_add(FOOTER_BYTES);
        if file_bytes < end {
            return Err(AprError::Truncated { expected: end, found: file_bytes });
        }
        if file_bytes != end && file_bytes != expected {
            return Err(AprError::TrailingData { expected, found: file_bytes });
        }
        let digest = blake3::hash(section("index", 0, data_start)?).into();
        Ok(Head { header, metadata, tensors, has_footer: file_bytes == expected, digest })
    }

    /// What the file says of the model, as the configuration that the Hub has of it.
    ///
    /// # Errors
    /// [`AprError`], naming the key that is missing or says something else.
    pub fn config(&self) -> Result<Vec<u8>, AprError> {
        let weight = Part::Weight.ending();
        let is_head = |name: &str| name.strip_suffix(weight) == Some(OUTPUT);
        config(&self.metadata, self.tensors.iter().any(|tensor| is_head(&tensor.name)))
    }

    /// The tensors as everybody else knows tensors, by offset: matrices of codes in the parts of their encodings.
    ///
    /// # Errors
    /// [`AprError::ScaleNameTaken`].
    pub fn into_stored(self) -> Result<Vec<StoredTensor>, AprError> {
        places(self.tensors)
    }

    /// What is odd in the file but does not matter, as sentences.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.has_footer {
            warnings.push(
                "the file has no checksum at its end: nobody can tell whether it is whole".into(),
            );
        }
        if self.header.flags & flags::ROW_MAJOR == 0 {
            warnings.push(
                "the file does not say that its matrices lie row by row; it is read as if they did"
                    .into(),
            );
        }
        warnings
    }
}
