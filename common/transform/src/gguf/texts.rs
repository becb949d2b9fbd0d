//! Reading the texts of a model, within bounds.

use std::io::ErrorKind;

use cake_checkpoint::TextFiles;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, TextFault};

/// Longest tokenizer that is read; the largest vocabularies in use need about 35 MiB.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// Longest other text that is read; real ones stay under a few MiB.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The bytes of a text, if it is there.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Text`] if it is too long.
pub(super) fn bytes(texts: &TextFiles, name: &str, most: u64) -> Result<Option<Vec<u8>>, Error> {
    match texts.read(name, most) {
        Ok(Ok(bytes)) => Ok(Some(bytes.into_owned())),
        Ok(Err(bytes)) => {
            Err(Error::Text { path: texts.path(name), cause: TextFault::TooLong { bytes, most } })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::io("read", &texts.path(name), cause)),
    }
}

/// What the JSON in `bytes` says, which are those of the text `name`.
///
/// # Errors
/// [`Error::Text`]
pub(super) fn parsed<T: DeserializeOwned>(
    texts: &TextFiles,
    name: &str,
    bytes: &[u8],
) -> Result<T, Error> {
    let failed = |cause| Error::Text { path: texts.path(name), cause: TextFault::Json(cause) };
    serde_json::from_slice(bytes).map_err(failed)
}

/// A text that is JSON, null if it is not there.
///
/// # Errors
/// As [`bytes`] and [`parsed`].
pub(super) fn json(texts: &TextFiles, name: &str) -> Result<Value, Error> {
    match bytes(texts, name, MAX_TEXT_BYTES)? {
        Some(bytes) => parsed(texts, name, &bytes),
        None => Ok(Value::Null),
    }
}

/// A text that is no JSON, if it is there.
///
/// # Errors
/// As [`bytes`]; [`Error::Text`] if it is not UTF-8.
pub(super) fn text(texts: &TextFiles, name: &str) -> Result<Option<String>, Error> {
    let Some(bytes) = bytes(texts, name, MAX_TEXT_BYTES)? else { return Ok(None) };
    let failed = |_| Error::Text { path: texts.path(name), cause: TextFault::NotUtf8 };
    String::from_utf8(bytes).map(Some).map_err(failed)
}
