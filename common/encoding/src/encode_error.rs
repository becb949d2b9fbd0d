//! Why numbers cannot be encoded.

use super::float::FloatType;

/// Why numbers cannot be encoded.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum EncodeError {
    #[error("weight {index} is {value}; only finite weights can be encoded")]
    NotFinite { index: usize, value: f32 },
    #[error("weight {index} is in a group that reaches {value}, too far for {params:?} scales")]
    TooLarge { index: usize, value: f32, params: FloatType },
    #[error("weight {index} is {value}, beyond what {float:?} has")]
    Beyond { index: usize, value: f32, float: FloatType },
}

impl EncodeError {
    /// The same of a weight that comes `before` weights later.
    pub fn after(self, before: usize) -> Self {
        match self {
            EncodeError::NotFinite { index, value } => {
                EncodeError::NotFinite { index: before + index, value }
            }
            EncodeError::TooLarge { index, value, params } => {
                EncodeError::TooLarge { index: before + index, value, params }
            }
            EncodeError::Beyond { index, value, float } => {
                EncodeError::Beyond { index: before + index, value, float }
            }
        }
    }
}
