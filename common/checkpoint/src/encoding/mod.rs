//! How weights are stored: the tag that says so, and one file or folder per encoding.

mod affine;
mod error;
mod float;
mod scheme;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use crate::dtype::Dtype;

pub use affine::{
    Affine, ENCODER_VERSION, EncodeError, PARAM_TYPES, Packed, decode_rows, encode_rows,
};
pub(crate) use affine::{Sink, encode_into};
pub use error::EncodingParseError;
pub use float::FloatType;
pub use scheme::{Scheme, SchemeParseError};

/// How a matrix is stored. The tag is decided once, where a checkpoint is opened, and travels with the matrix from then
/// on: in manifests, requests and to the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// As plain numbers.
    Float(FloatType),
    /// As codes with a scale and a bias per group.
    Affine(Affine),
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Float(float) => f.pad(float.dtype().name()),
            Encoding::Affine(format) => {
                f.pad(&format!("affine-{}-{}", format.bits(), format.group()))
            }
        }
    }
}

impl FromStr for Encoding {
    type Err = EncodingParseError;

    fn from_str(text: &str) -> Result<Self, EncodingParseError> {
        let affine = || {
            let (bits, group) = text.strip_prefix("affine-")?.split_once('-')?;
            Affine::new(bits.parse().ok()?, group.parse().ok()?).map(Encoding::Affine)
        };
        let float = || Dtype::parse(text).and_then(FloatType::of).map(Encoding::Float);
        float().or_else(affine).ok_or_else(|| EncodingParseError { text: text.to_owned() })
    }
}
