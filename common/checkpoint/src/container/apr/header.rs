//! The first 64 bytes of an APR file: where everything else is.

use std::ops::Range;

use super::error::AprError;
use super::layout::{
    ALIGNMENT, CHECKSUM_AT, HEADER_BYTES, MAGIC, MAJOR_VERSION, MAX_INDEX_BYTES,
    MAX_METADATA_BYTES, MAX_TENSORS, flags, header_checksum,
};

/// Fewest bytes of an entry of the index.
const LEAST_ENTRY_BYTES: u64 = 20;

/// A checked header: metadata, index and data follow each other in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the file is; see [`flags`].
    pub flags: u16,
    /// Number of tensors; an index of this length has room for them.
    pub tensors: u32,
    /// Where the metadata are, without the zeros behind them.
    pub metadata: Range<u64>,
    /// Where the index is, with the zeros behind it.
    pub index: Range<u64>,
    /// Where the data start.
    pub data_start: u64,
}

impl Header {
    /// Checks the first bytes of a file of `file_bytes`.
    ///
    /// # Errors
    /// [`AprError`]; the first rule broken.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Header, AprError> {
        let bytes: &[u8; HEADER_BYTES as usize] =
            bytes.first_chunk().ok_or(AprError::TooShort { file_bytes })?;
        let found = number(bytes, 0);
        if found != MAGIC {
            return Err(AprError::NotApr { found });
        }
        let [major, minor] = number(bytes, 4);
        if major != MAJOR_VERSION {
            return Err(AprError::Version { major, minor });
        }
        let (expected, found) =
            (header_checksum(bytes), u32::from_le_bytes(number(bytes, CHECKSUM_AT)));
        if expected != found {
            return Err(AprError::HeaderChecksum { expected, found });
        }
        let header = Header::read(bytes);
        check_flags(header.flags)?;
        header.check(file_bytes)?;
        Ok(header)
    }

    fn read(bytes: &[u8; HEADER_BYTES as usize]) -> Header {
        let word = |at| u32::from_le_bytes(number(bytes, at));
        let long = |at| u64::from_le_bytes(number(bytes, at));
        let (metadata, data_start) = (long(12), long(32));
        Header {
            flags: u16::from_le_bytes(number(bytes, 6)),
            tensors: word(8),
            metadata: metadata..metadata.saturating_add(word(20).into()),
            index: long(24)..data_start,
            data_start,
        }
    }

    /// Checks that the sections are in the file, one behind the other, and of lengths that may be read.
    fn check(&self, file_bytes: u64) -> Result<(), AprError> {
        let Header { tensors, metadata, index, data_start, .. } = self;
        let mut before = HEADER_BYTES;
        for (section, start, end) in [
            ("metadata", metadata.start, metadata.end),
            ("index", index.start, *data_start),
            ("data", *data_start, *data_start),
        ] {
            if !start.is_multiple_of(ALIGNMENT) {
                return Err(AprError::SectionUnaligned { section, offset: start });
            }
            if start < before {
                return Err(AprError::SectionOverlaps { section, start, before });
            }
            if end > file_bytes {
                return Err(AprError::SectionOutside { section, end, file_bytes });
            }
            before = end.max(start); // Of an index that ends before it starts, the data say so.
        }
        // Of the numbers as they are: nothing saturated, since all ends are in the file.
        let bytes = (metadata.end - metadata.start) as u32;
        if bytes > MAX_METADATA_BYTES {
            return Err(AprError::MetadataTooLong { bytes });
        }
        // From the end of the metadata on: what is read at once must be bounded, holes between sections included.
        let bytes = index.end - metadata.end;
        if bytes > MAX_INDEX_BYTES || metadata.start > MAX_INDEX_BYTES {
            return Err(AprError::IndexTooLong { bytes: bytes.max(metadata.start) });
        }
        let (tensors, bytes) = (*tensors, index.end - index.start);
        if tensors > MAX_TENSORS {
            return Err(AprError::TooManyTensors { tensors });
        }
        if u64::from(tensors) * LEAST_ENTRY_BYTES > bytes {
            return Err(AprError::NoRoomForTensors { tensors, bytes });
        }
        Ok(())
    }
}

/// Refuses files whose data are not simply tensors, row by row.
fn check_flags(found: u16) -> Result<(), AprError> {
    let unread = [
        (flags::LZ4, "compressed by LZ4"),
        (flags::ZSTD, "compressed by Zstandard"),
        (flags::ENCRYPTED, "encrypted"),
        (flags::SHARDED, "one of several that make a model"),
        (flags::COLUMN_MAJOR, "column-major"),
    ];
    if let Some((_, what)) = unread.into_iter().find(|(flag, _)| found & flag != 0) {
        return Err(AprError::Unsupported { what });
    }
    match found & !flags::ALL {
        0 => Ok(()),
        bits => Err(AprError::UnknownFlags { bits }),
    }
}

/// The bytes of a number at a place of the header, which has them.
fn number<const N: usize>(bytes: &[u8; HEADER_BYTES as usize], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the header's numbers end within it")
}
