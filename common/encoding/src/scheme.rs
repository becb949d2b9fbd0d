//! What weights are turned into on their way from the checkpoint.

use std::fmt;
use std::str::FromStr;

use super::affine::format::Affine;
use super::fp4::Fp4;
use super::ggml::GgmlType;
use super::tag::Encoding;

/// What weights are turned into on their way from the checkpoint. Matrices that the checkpoint
/// already has packed stay as they are.
///
/// ```
/// use cake_encoding::Scheme;
///
/// let scheme: Scheme = "q4".parse().expect("a scheme");
/// assert_eq!(scheme, Scheme::Q4);
/// // Keys and values that several heads share get more bits.
/// assert_eq!(scheme.of_shared(), Scheme::Q6);
/// assert!("q3".parse::<Scheme>().unwrap_err().to_string().contains("write as-stored, q8"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheme {
    /// As the checkpoint has them.
    #[default]
    AsStored,
    /// 8 bits in groups of 64, or what weights [have been before](Scheme::keeps).
    Q8,
    /// 6 bits in groups of 64, or what weights have been; embedding and head have 8 bits, or what they have been, as in all
    /// that are narrower.
    Q6,
    /// 5 bits in groups of 64, or what weights have been.
    Q5,
    /// 4 bits in groups of 64, or what weights have been.
    Q4,
    /// Numbers of 4 bits in groups of 32 with a power of two; embedding and head have 8 bits.
    Mxfp4,
}

/// Why a text is not a scheme.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{text:?} is no encoding that weights are turned into; write as-stored, q8, q6, q5, q4 or mxfp4"
)]
pub struct SchemeParseError {
    /// What was given.
    pub text: String,
}

impl Scheme {
    /// Every scheme, widest first.
    pub const ALL: [Scheme; 6] =
        [Scheme::AsStored, Scheme::Q8, Scheme::Q6, Scheme::Q5, Scheme::Q4, Scheme::Mxfp4];

    /// What the matrices of layers become that were never packed; `None` if they stay.
    pub const fn of_layers(self) -> Option<Encoding> {
        let format = match self {
            Scheme::AsStored => return None,
            Scheme::Mxfp4 => return Some(Encoding::Fp4(Fp4::Mx)),
            Scheme::Q8 => Affine::Q8,
            Scheme::Q6 => Affine::Q6,
            Scheme::Q5 => Affine::Q5,
            Scheme::Q4 => Affine::Q4,
        };
        Some(Encoding::Affine(format))
    }

    /// The scheme for keys and values of which each head serves several heads of queries: there are few of them, and errors
    /// of theirs reach all of these. Of those that a model loses by 4 bits, they make twice to three times their share.
    pub const fn of_shared(self) -> Scheme {
        match self {
            Scheme::Q4 => Scheme::Q6,
            Scheme::Q5 | Scheme::Q6 => Scheme::Q8,
            other => other,
        }
    }

    /// What those become that were such codes before somebody widened them: those again, if they take about a bit more for
    /// each weight than others do, or less. What was codes of 5 bits in groups of 32 with a minimum stays in such groups in 4,
    /// and what was of 6 in blocks has 5 in such blocks: whoever made them gave more bits to what errors count most in.
    /// `None` if they are like all others.
    pub fn keeps(self, codes: Encoding) -> Option<Encoding> {
        match (self, codes) {
            // 6 bits with scale and bias.
            (Scheme::Q4, Encoding::Affine(Affine::Q5_32) | Encoding::Ggml(GgmlType::Q5_1)) => {
                Some(Encoding::Affine(Affine::Q4_32))
            }
            // 6.6 bits with scales.
            (Scheme::Q4, Encoding::Ggml(GgmlType::Q6K)) => Some(Encoding::Ggml(GgmlType::Q5K)),
            // 8.5 bits with a scale.
            (Scheme::Q4 | Scheme::Q5 | Scheme::Q6, Encoding::Ggml(GgmlType::Q8_0)) => None,
            _ => Some(codes),
        }
    }

    /// Whether weights become grouped codes, or those that they were.
    pub const fn is_codes(self) -> bool {
        matches!(self, Scheme::Q8 | Scheme::Q6 | Scheme::Q5 | Scheme::Q4)
    }

    /// Whether weights may be off more or less, as it counts: codes of 8 bits are near enough, and numbers have no choice.
    pub const fn weighs_errors(self) -> bool {
        matches!(self, Scheme::Q6 | Scheme::Q5 | Scheme::Q4)
    }

    /// What embedding and head become; `None` if they stay.
    pub const fn of_ends(self) -> Option<Encoding> {
        match self {
            Scheme::AsStored => None,
            Scheme::Q8 | Scheme::Q6 | Scheme::Q5 | Scheme::Q4 | Scheme::Mxfp4 => {
                Some(Encoding::Affine(Affine::Q8))
            }
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scheme::AsStored => "as-stored",
            Scheme::Q8 => "q8",
            Scheme::Q6 => "q6",
            Scheme::Q5 => "q5",
            Scheme::Q4 => "q4",
            Scheme::Mxfp4 => "mxfp4",
        })
    }
}

impl FromStr for Scheme {
    type Err = SchemeParseError;

    fn from_str(text: &str) -> Result<Self, SchemeParseError> {
        let found = Scheme::ALL.into_iter().find(|encoding| encoding.to_string() == text);
        found.ok_or_else(|| SchemeParseError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for encoding in Scheme::ALL {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
        }
        assert!("q3".parse::<Scheme>().unwrap_err().to_string().contains("q4 or mxfp4"));
    }
}
