//! A specification as bytes, for other machines: JSON with a version of its own.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::error::SpecError;
use super::whole::ModelSpec;

/// Longest specification read: below the largest message, and several times the longest of a model in use.
pub const MAX_SPEC_BYTES: usize = 1 << 20;

/// Version of the format. Raised whenever an older worker could misread a newer specification; one that only has more
/// fields or kinds of operations is refused by name.
const VERSION: u64 = 2;

#[derive(Serialize)]
struct Sent<'a> {
    version: u64,
    model: &'a ModelSpec,
}

#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Received {
    #[serde(rename = "version")]
    _version: IgnoredAny,
    model: ModelSpec,
}

impl ModelSpec {
    /// The specification without what only its checkpoint needs: `{"version": 2, "model": {…}}`.
    ///
    /// More than [`MAX_SPEC_BYTES`] is read by nobody.
    pub fn to_wire(&self) -> Vec<u8> {
        let sent = Sent { version: VERSION, model: self };
        serde_json::to_vec(&sent).expect("text, numbers and lists of them are always JSON")
    }

    /// Reads what [`ModelSpec::to_wire`] wrote, to the last bit of each number.
    ///
    /// The bytes may come from a peer: no input panics, and what is returned holds what whoever computes with a
    /// specification relies on.
    ///
    /// # Errors
    /// [`SpecError`], naming what is malformed, unknown or out of bounds.
    pub fn from_wire(bytes: &[u8]) -> Result<ModelSpec, SpecError> {
        if bytes.len() > MAX_SPEC_BYTES {
            return Err(SpecError::TooLarge { bytes: bytes.len(), most: MAX_SPEC_BYTES });
        }
        // A later version may have anything beside its number.
        let Versioned { version } = serde_json::from_slice(bytes).map_err(SpecError::Json)?;
        if version != VERSION {
            return Err(SpecError::Version { reads: VERSION, found: version });
        }
        let Received { model, .. } = serde_json::from_slice(bytes).map_err(SpecError::Json)?;
        model.check()?;
        Ok(model)
    }
}
