//! Everything of a GGUF file that comes before its data, read and checked.

use std::fs::File;
use std::path::Path;

use super::cursor::{Cursor, Stop};
use super::error::GgufError;
use super::limits::{
    ALIGNMENT, ALIGNMENT_KEY, LEAST_KEY_BYTES, LEAST_TENSOR_BYTES, MAGIC, MAX_HEADER_BYTES,
    MAX_KEYS, MAX_TENSORS,
};
use super::metadata;
use super::tensors::{self, TensorInfo};
use super::value::{Metadata, Value};
use crate::error::Error;
use crate::file::read_exact_at;

/// What is read of a file at first: few vocabularies take more.
const FIRST_BYTES: u64 = 1 << 20;

/// What a file says of itself. Its tensors are in it and share no bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Head {
    /// What it says beside its tensors.
    pub(crate) metadata: Metadata,
    /// Its tensors, by place.
    pub tensors: Vec<TensorInfo>,
    /// Where the data start.
    pub data_start: u64,
    /// BLAKE3 of everything before the data.
    pub digest: [u8; 32],
}

impl Head {
    /// Opens a file and reads everything before its data; also the handle, and the file's length.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Gguf`] for what is wrong in the file.
    pub fn read(path: &Path) -> Result<(Head, File, u64), Error> {
        let failed = |action| move |cause| Error::io(action, path, cause);
        let wrong = |cause| Error::Gguf { path: path.into(), cause };
        let file = File::open(path).map_err(failed("open"))?;
        let file_bytes = file.metadata().map_err(failed("read"))?.len();
        let mut bytes = Vec::new();
        let mut length = FIRST_BYTES.min(file_bytes);
        loop {
            let have = bytes.len();
            bytes.resize(length as usize, 0); // Bounded below.
            read_exact_at(&file, &mut bytes[have..], have as u64).map_err(failed("read"))?;
            match parse(&bytes, file_bytes) {
                Ok(head) => return Ok((head, file, file_bytes)),
                Err(Stop::Wrong(cause)) => return Err(wrong(cause)),
                Err(Stop::More) if length == MAX_HEADER_BYTES => {
                    return Err(wrong(GgufError::HeaderTooLong));
                }
                // Longer than what was read, or nothing more would be asked for.
                Err(Stop::More) => length = (4 * length).min(file_bytes).min(MAX_HEADER_BYTES),
            }
        }
    }

    /// Checks the beginning of a file of `file_bytes`; `bytes` may go on into the data.
    ///
    /// # Errors
    /// [`GgufError`]; the first rule broken.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Head, GgufError> {
        parse(bytes, file_bytes).map_err(|stop| match stop {
            Stop::Wrong(error) => error,
            Stop::More => GgufError::HeaderTooLong,
        })
    }
}

fn parse(bytes: &[u8], file_bytes: u64) -> Result<Head, Stop> {
    let mut cursor = Cursor::new(bytes, file_bytes);
    if !bytes.starts_with(&MAGIC) {
        let found = bytes.iter().take(MAGIC.len()).copied().collect();
        return Err(GgufError::NotGguf { found }.into());
    }
    let what = "the header";
    cursor.take(MAGIC.len() as u64, what)?;
    match cursor.u32(what)? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian.into()),
        version => return Err(GgufError::Version { version }.into()),
    }
    let (tensors, keys) = (cursor.u64(what)?, cursor.u64(what)?);
    if tensors > MAX_TENSORS {
        return Err(GgufError::TooManyTensors { tensors }.into());
    }
    if keys > MAX_KEYS {
        return Err(GgufError::TooManyKeys { keys }.into());
    }
    cursor.has_room(keys, LEAST_KEY_BYTES, "keys")?;
    let metadata = metadata::parse(&mut cursor, keys)?;
    cursor.has_room(tensors, LEAST_TENSOR_BYTES, "tensors")?;
    let mut tensors = tensors::parse(&mut cursor, tensors)?;
    let alignment = alignment(&metadata)?;
    let header_end = cursor.position();
    let data_start = header_end.next_multiple_of(alignment); // Both are below 2^32.
    tensors::place(&mut tensors, data_start, alignment, file_bytes)?;
    let digest = blake3::hash(&bytes[..header_end as usize]).into(); // The cursor came so far.
    Ok(Head { metadata, tensors, data_start, digest })
}

/// What tensors start at multiples of.
fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some(&Value::Unsigned(found))
            if found.is_power_of_two() && u32::try_from(found).is_ok() =>
        {
            Ok(found)
        }
        Some(found) => Err(GgufError::Alignment { found: found.to_string() }),
    }
}
