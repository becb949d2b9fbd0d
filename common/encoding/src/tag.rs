//! The tag that says how a matrix is stored.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::affine::format::Affine;
use super::apr::AprType;
use super::bnb::Bnb;
use super::float::element::FloatType;
use super::fp4::Fp4;
use super::fp8::Fp8;
use super::ggml::GgmlType;
use super::integer::Integer;
use crate::dtype::Dtype;

/// Why a text is not the tag of an encoding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no encoding of weights; write a type such as BF16, or affine-4-64 or ggml-q4_k"
)]
pub struct EncodingParseError {
    /// What was given.
    pub text: String,
}

/// How a matrix is stored. The tag is decided once, where a checkpoint is opened, and travels with the matrix from then
/// on: in manifests, requests and to the kernels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Encoding {
    /// As plain numbers.
    Float(FloatType),
    /// As codes with a scale and a bias per group.
    Affine(Affine),
    /// As blocks of ggml.
    Ggml(GgmlType),
    /// As codes of APR files.
    Apr(AprType),
    /// As numbers of a byte behind scales.
    Fp8(Fp8),
    /// As numbers of 4 bits behind scales.
    Fp4(Fp4),
    /// As whole numbers with a scale per group and a zero point.
    Integer(Integer),
    /// As codes of levels of bitsandbytes.
    Bnb(Bnb),
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encoding::Float(float) => f.pad(float.dtype().name()),
            Encoding::Affine(format) => {
                f.pad(&format!("affine-{}-{}", format.bits(), format.group()))
            }
            Encoding::Ggml(kind) => f.pad(&format!("ggml-{kind}")),
            Encoding::Apr(kind) => f.pad(&format!("apr-{kind}")),
            Encoding::Fp8(format) => f.pad(&format!("fp8-{format}")),
            Encoding::Fp4(kind) => f.pad(kind.name()),
            Encoding::Integer(format) => f.pad(&format!("int-{format}")),
            Encoding::Bnb(format) => f.pad(&format!("bnb-{format}")),
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
        let ggml = || {
            let name = text.strip_prefix("ggml-")?;
            GgmlType::ALL.into_iter().find(|kind| kind.name() == name).map(Encoding::Ggml)
        };
        let apr = || {
            let name = text.strip_prefix("apr-")?;
            AprType::ALL.into_iter().find(|kind| kind.name() == name).map(Encoding::Apr)
        };
        let fp8 = || text.strip_prefix("fp8-").and_then(Fp8::named).map(Encoding::Fp8);
        let fp4 = || Fp4::ALL.into_iter().find(|kind| kind.name() == text).map(Encoding::Fp4);
        let integer = || {
            let name = text.strip_prefix("int-")?;
            Integer::all().find(|format| format.to_string() == name).map(Encoding::Integer)
        };
        let bnb = || {
            let name = text.strip_prefix("bnb-")?;
            Bnb::all().find(|format| format.to_string() == name).map(Encoding::Bnb)
        };
        let found = float().or_else(affine).or_else(ggml).or_else(apr);
        let found = found.or_else(fp8).or_else(fp4).or_else(integer).or_else(bnb);
        found.ok_or_else(|| EncodingParseError { text: text.to_owned() })
    }
}

impl TryFrom<String> for Encoding {
    type Error = EncodingParseError;

    fn try_from(text: String) -> Result<Self, EncodingParseError> {
        text.parse()
    }
}

impl From<Encoding> for String {
    fn from(encoding: Encoding) -> String {
        encoding.to_string()
    }
}
