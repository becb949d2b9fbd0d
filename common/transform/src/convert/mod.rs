//! From one format or encoding to another.

pub(crate) mod config;
mod hub;
mod stacks;
#[cfg(test)]
mod tests;

pub use hub::{HubFormat, to_hub};

use std::fmt;
use std::str::FromStr;

use cake_checkpoint::{FloatType, GgmlType, Scheme};

/// What matrices become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encode {
    /// What they are.
    #[default]
    AsStored,
    /// Plain numbers of one type, and all other tensors of numbers too.
    Float(FloatType),
    /// Grouped affine codes, as workers get them by that scheme where it has no blocks ([`cake_checkpoint::Checkpoint::becomes_affine`]).
    Affine(Scheme),
    /// Blocks of ggml.
    Blocks(GgmlType),
}

/// Why a text says no encoding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is nothing that weights are turned into; write {}", names())]
pub struct EncodeParseError {
    text: String,
}

impl Encode {
    /// All that there are.
    pub const ALL: [Encode; 13] = [
        Encode::AsStored,
        Encode::Float(FloatType::F32),
        Encode::Float(FloatType::F16),
        Encode::Float(FloatType::BF16),
        Encode::Affine(Scheme::Q8),
        Encode::Affine(Scheme::Q6),
        Encode::Affine(Scheme::Q5),
        Encode::Affine(Scheme::Q4),
        Encode::Blocks(GgmlType::Q8_0),
        Encode::Blocks(GgmlType::Q4_0),
        Encode::Blocks(GgmlType::Q6K),
        Encode::Blocks(GgmlType::Q5K),
        Encode::Blocks(GgmlType::Q4K),
    ];
}

fn names() -> String {
    Encode::ALL.map(|encode| encode.to_string()).join(", ")
}

impl fmt::Display for Encode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encode::AsStored => f.pad("as-stored"),
            Encode::Float(float) => f.pad(&float.dtype().name().to_lowercase()),
            Encode::Affine(scheme) => f.pad(&scheme.to_string()),
            Encode::Blocks(kind) => f.pad(kind.name()),
        }
    }
}

impl FromStr for Encode {
    type Err = EncodeParseError;

    fn from_str(text: &str) -> Result<Encode, EncodeParseError> {
        let found = Encode::ALL.into_iter().find(|encode| encode.to_string() == text);
        found.ok_or_else(|| EncodeParseError { text: text.to_owned() })
    }
}
