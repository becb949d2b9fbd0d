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
    /// Codes of a signed byte. [`KvDtype::GROUP`] neighbours of a head share a scale, `max |x| / 127` rounded to bf16, and a
    /// code is `x / scale` rounded to the nearest, ties to even: off by half a scale at most.
    Q8,
}

/// Why a text is not an element type of the KV cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a KV cache type; write {}", KvDtype::names())]
pub struct KvDtypeError {
    /// What was given.
    pub text: String,
}

impl KvDtype {
    /// All of them, the widest first.
    pub const ALL: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Q8];

    /// Numbers of a head that share a scale, where there are scales; the last of a head may be fewer.
    pub const GROUP: usize = 32;

    /// Bytes of one number, without what it shares with others.
    pub const fn number_bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
            KvDtype::Q8 => 1,
        }
    }

    /// Bytes that the numbers of a group share.
    pub const fn scale_bytes(self) -> usize {
        match self {
            KvDtype::F32 | KvDtype::F16 => 0,
            KvDtype::Q8 => 2,
        }
    }

    /// Bytes of a head of so many numbers of one position. A head is smaller than a checkpoint, so that this cannot
    /// overflow.
    pub const fn head_bytes(self, head_dim: usize) -> usize {
        head_dim * self.number_bytes() + Self::groups(head_dim) * self.scale_bytes()
    }

    /// Groups of a head of so many numbers.
    pub const fn groups(head_dim: usize) -> usize {
        head_dim.div_ceil(Self::GROUP)
    }

    /// All names, for sentences.
    pub fn names() -> String {
        let [names @ .., last] = Self::ALL.map(|kv| kv.to_string());
        format!("{} or {last}", names.join(", "))
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Q8 => "q8",
        })
    }
}

impl FromStr for KvDtype {
    type Err = KvDtypeError;

    fn from_str(text: &str) -> Result<Self, KvDtypeError> {
        let named = Self::ALL.into_iter().find(|kv| kv.to_string() == text);
        named.ok_or_else(|| KvDtypeError { text: text.to_owned() })
    }
}
