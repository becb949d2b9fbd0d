//! In which encoding layers are sent and the ends are held.

use std::fmt;
use std::str::FromStr;

use super::Affine;

/// What weights are turned into on their way from the checkpoint. Matrices that the checkpoint
/// already has packed stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoding {
    /// As the checkpoint has them.
    #[default]
    AsStored,
    /// 8 bits in groups of 64.
    Q8,
    /// 4 bits in groups of 64; embedding and head have 8 bits.
    Q4,
}

/// Why a text is not an encoding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not an encoding; write as-stored, q8 or q4")]
pub struct EncodingParseError {
    /// What was given.
    pub text: String,
}

impl Encoding {
    /// Every encoding, widest first.
    pub const ALL: [Encoding; 3] = [Encoding::AsStored, Encoding::Q8, Encoding::Q4];

    /// What the matrices of layers become; `None` if they stay.
    pub const fn of_layers(self) -> Option<Affine> {
        match self {
            Encoding::AsStored => None,
            Encoding::Q8 => Some(Affine::Q8),
            Encoding::Q4 => Some(Affine::Q4),
        }
    }

    /// What embedding and head become; `None` if they stay.
    pub const fn of_ends(self) -> Option<Affine> {
        match self {
            Encoding::AsStored => None,
            Encoding::Q8 | Encoding::Q4 => Some(Affine::Q8),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Encoding::AsStored => "as-stored",
            Encoding::Q8 => "q8",
            Encoding::Q4 => "q4",
        })
    }
}

impl FromStr for Encoding {
    type Err = EncodingParseError;

    fn from_str(text: &str) -> Result<Self, EncodingParseError> {
        let found = Encoding::ALL.into_iter().find(|encoding| encoding.to_string() == text);
        found.ok_or_else(|| EncodingParseError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for encoding in Encoding::ALL {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
        }
        assert!("q5".parse::<Encoding>().unwrap_err().to_string().contains("q8 or q4"));
    }
}
