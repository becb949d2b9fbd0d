//! What weights are turned into on their way from the checkpoint.

use std::fmt;
use std::str::FromStr;

use super::affine::format::Affine;
use super::fp4::Fp4;
use super::tag::Encoding;

/// What weights are turned into on their way from the checkpoint. Matrices that the checkpoint
/// already has packed stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scheme {
    /// As the checkpoint has them.
    #[default]
    AsStored,
    /// 8 bits in groups of 64.
    Q8,
    /// 6 bits in groups of 64, or of 32 where weights have been codes in such groups before; embedding and head have 8
    /// bits, as in all that are narrower.
    Q6,
    /// 5 bits in groups likewise.
    Q5,
    /// 4 bits in groups likewise.
    Q4,
    /// Numbers of 4 bits in groups of 32 with a power of two.
    Mxfp4,
}

/// How many neighbours share a scale and a bias in what weights become, where there is a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// 64: the fewest bytes that lose little.
    Of64,
    /// 32: weights were codes of 4 or 5 bits in such groups before, and stay those, if they get as many, but for the rounding
    /// of scale and bias.
    Of32,
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

    /// What the matrices of layers become whose weights lie on steps of their own in groups of so many
    /// ([`Checkpoint::group`](crate::Checkpoint::group)); `None` if they stay.
    pub const fn of_layers(self, group: Group) -> Option<Encoding> {
        let formats = match self {
            Scheme::AsStored => return None,
            Scheme::Mxfp4 => return Some(Encoding::Fp4(Fp4::Mx)),
            Scheme::Q8 => [Affine::Q8, Affine::Q8],
            Scheme::Q6 => [Affine::Q6, Affine::Q6_32],
            Scheme::Q5 => [Affine::Q5, Affine::Q5_32],
            Scheme::Q4 => [Affine::Q4, Affine::Q4_32],
        };
        Some(Encoding::Affine(formats[group as usize]))
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
