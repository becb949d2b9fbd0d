//! The types of tensors that are written.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cake_checkpoint::encoding::ggml::{BLOCK, q4_0, q8_0};
use cake_checkpoint::{EncodeError, Encoding, FloatType};

use crate::form::{FloatForm, Form};

/// A type of tensors in a GGUF file that is written; also what is asked for, where most of a file's matrices get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GgufType {
    /// Plain numbers of 4 bytes.
    F32,
    /// Plain numbers of 2 bytes, IEEE half precision.
    F16,
    /// Plain numbers of 2 bytes, the upper half of an F32.
    Bf16,
    /// 8 bits in blocks of 32.
    Q8_0,
    /// 4 bits in blocks of 32.
    Q4_0,
}

/// Why a text is no type that is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no type of GGUF that is written; write f32, f16, bf16, q8_0 or q4_0")]
pub struct GgufTypeParseError {
    /// What was given.
    pub text: String,
}

impl GgufType {
    /// Every type that is written.
    pub const ALL: [GgufType; 5] =
        [GgufType::F32, GgufType::F16, GgufType::Bf16, GgufType::Q8_0, GgufType::Q4_0];

    /// Its number in GGUF.
    pub(super) fn id(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::Q4_0 => 2,
            GgufType::Q8_0 => 8,
            GgufType::Bf16 => 30,
        }
    }

    /// The number of a file that has mostly this, as `general.file_type`.
    pub(super) fn file_type(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::Q4_0 => 2,
            GgufType::Q8_0 => 7,
            GgufType::Bf16 => 32,
        }
    }

    /// Numbers that belong together; a row is a multiple.
    fn block(self) -> u64 {
        match self {
            GgufType::F32 | GgufType::F16 | GgufType::Bf16 => 1,
            GgufType::Q8_0 | GgufType::Q4_0 => BLOCK as u64,
        }
    }

    /// What a matrix that is stored so is written as, if nobody says it.
    pub(super) fn of(encoding: Encoding) -> GgufType {
        match encoding {
            Encoding::Float(FloatType::F32) => GgufType::F32,
            Encoding::Float(FloatType::BF16) => GgufType::Bf16,
            _ => GgufType::F16,
        }
    }

    /// This, or what a row of so many columns gets instead, as `llama-quantize` does.
    pub(super) fn of_row(self, columns: u64) -> GgufType {
        if columns.is_multiple_of(self.block()) { self } else { GgufType::F16 }
    }

    /// Bytes of a row of so many columns, a multiple of the block's; `None` past 64 bits.
    pub(super) fn row_bytes(self, columns: u64) -> Option<u64> {
        let bytes = match self {
            GgufType::F32 => 4,
            GgufType::F16 | GgufType::Bf16 => 2,
            GgufType::Q8_0 => q8_0::BLOCK_BYTES as u64,
            GgufType::Q4_0 => q4_0::BLOCK_BYTES as u64,
        };
        (columns / self.block()).checked_mul(bytes)
    }

    /// Whether what is stored so has these bytes already.
    pub(super) fn is(self, encoding: Encoding) -> bool {
        match self {
            GgufType::F32 => encoding == Encoding::Float(FloatType::F32),
            GgufType::F16 => encoding == Encoding::Float(FloatType::F16),
            GgufType::Bf16 => encoding == Encoding::Float(FloatType::BF16),
            GgufType::Q8_0 | GgufType::Q4_0 => false,
        }
    }

    /// How its rows are written.
    pub(super) fn form(self) -> Arc<dyn Form> {
        match self {
            GgufType::F32 => Arc::new(FloatForm(FloatType::F32)),
            GgufType::F16 => Arc::new(FloatForm(FloatType::F16)),
            GgufType::Bf16 => Arc::new(FloatForm(FloatType::BF16)),
            GgufType::Q8_0 | GgufType::Q4_0 => Arc::new(Blocks(self)),
        }
    }
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GgufType::F32 => "f32",
            GgufType::F16 => "f16",
            GgufType::Bf16 => "bf16",
            GgufType::Q8_0 => "q8_0",
            GgufType::Q4_0 => "q4_0",
        })
    }
}

impl FromStr for GgufType {
    type Err = GgufTypeParseError;

    fn from_str(text: &str) -> Result<Self, GgufTypeParseError> {
        let found = GgufType::ALL.into_iter().find(|it| it.to_string() == text);
        found.ok_or_else(|| GgufTypeParseError { text: text.to_owned() })
    }
}

/// Rows in blocks with scales.
#[derive(Clone, Copy, Debug)]
struct Blocks(GgufType);

impl Form for Blocks {
    fn identity(&self) -> String {
        format!("{} 1", self.0)
    }

    fn row_bytes(&self, columns: u64) -> Vec<u64> {
        vec![self.0.row_bytes(columns).unwrap_or(u64::MAX)]
    }

    fn write(
        &self,
        rows: &[f32],
        _: usize,
        _: f32,
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        let [out] = out else { panic!("blocks have one part") };
        match self.0 {
            GgufType::Q4_0 => q4_0::encode_rows(rows, out),
            _ => q8_0::encode_rows(rows, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_their_names_and_sizes() {
        for it in GgufType::ALL {
            assert_eq!(it.to_string().parse(), Ok(it));
            let bytes = it.row_bytes(64).unwrap();
            assert_eq!(it.form().row_bytes(64), [bytes]);
            let mut out = vec![0; bytes as usize];
            it.form().write(&[0.5; 64], 64, 0.0, &mut [&mut out]).unwrap();
        }
        assert_eq!(GgufType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(GgufType::Q8_0.of_row(48), GgufType::F16);
        assert_eq!(GgufType::Bf16.of_row(48), GgufType::Bf16);
        assert!("q5_0".parse::<GgufType>().unwrap_err().to_string().contains("q8_0 or q4_0"));
    }
}
