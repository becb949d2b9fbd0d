//! How numbers of the KV cache are stored.

use std::fmt;
use std::str::FromStr;

/// Element type of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KvDtype {
    /// 4 bytes; exact.
    #[default]
    F32,
    /// 2 bytes; rounded.
    F16,
}

/// Why a text is not an element type of the KV cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a KV cache type; write f32 or f16")]
pub struct KvDtypeError {
    /// What was given.
    pub text: String,
}

impl KvDtype {
    /// Bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
        })
    }
}

impl FromStr for KvDtype {
    type Err = KvDtypeError;

    fn from_str(text: &str) -> Result<Self, KvDtypeError> {
        match text {
            "f32" => Ok(KvDtype::F32),
            "f16" => Ok(KvDtype::F16),
            _ => Err(KvDtypeError { text: text.to_owned() }),
        }
    }
}
