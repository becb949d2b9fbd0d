//! Why a text names no encoding.

/// Why a text is not the tag of an encoding.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no encoding of weights; write a type such as BF16, or affine-4-64")]
pub struct EncodingParseError {
    /// What was given.
    pub text: String,
}
