//! The types of tensors that are written.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use cake_checkpoint::{Encoding, FloatType, GgmlType};

use crate::form::{FloatForm, Form, PackedForm};

/// A type of tensors in a GGUF file that is written; also what is asked for, where most of a file's matrices get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GgufType {
    /// Plain numbers.
    Float(FloatType),
    /// Blocks with scales; of a kind that has an encoder.
    Blocks(GgmlType),
}

/// Why a text is no type that is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no type of GGUF that is written; write {}", names())]
pub struct GgufTypeParseError {
    /// What was given.
    pub text: String,
}

impl GgufType {
    /// Plain numbers of 4 bytes.
    pub const F32: GgufType = GgufType::Float(FloatType::F32);
    /// Plain numbers of 2 bytes, IEEE half precision.
    pub const F16: GgufType = GgufType::Float(FloatType::F16);
    /// Plain numbers of 2 bytes, the upper half of an F32.
    pub const BF16: GgufType = GgufType::Float(FloatType::BF16);
    /// 8 bits in blocks of 32.
    pub const Q8_0: GgufType = GgufType::Blocks(GgmlType::Q8_0);
    /// 4 bits in blocks of 32.
    pub const Q4_0: GgufType = GgufType::Blocks(GgmlType::Q4_0);

    /// Every type that is asked for.
    pub const ALL: [GgufType; 8] = [
        GgufType::F32,
        GgufType::F16,
        GgufType::BF16,
        GgufType::Q8_0,
        GgufType::Q4_0,
        GgufType::Blocks(GgmlType::Q6K),
        GgufType::Blocks(GgmlType::Q5K),
        GgufType::Blocks(GgmlType::Q4K),
    ];

    /// Its number in GGUF.
    pub(super) fn id(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::BF16 => 30,
            GgufType::Blocks(kind) => kind.id(),
        }
    }

    /// The number of a file that has mostly this, as `general.file_type`; of larger blocks, that in which none are of another kind
    /// by choice.
    pub(super) fn file_type(self) -> u32 {
        match self {
            GgufType::F32 => 0,
            GgufType::F16 => 1,
            GgufType::BF16 => 32,
            GgufType::Blocks(kind) => match kind {
                GgmlType::Q4_0 => 2,
                GgmlType::Q4_1 => 3,
                GgmlType::Q5_0 => 8,
                GgmlType::Q5_1 => 9,
                GgmlType::Q2K => 10,
                GgmlType::Q3K => 11,
                GgmlType::Q4K => 14,
                GgmlType::Q5K => 16,
                GgmlType::Q6K => 18,
                GgmlType::Iq4Nl => 25,
                GgmlType::Iq4Xs => 30,
                GgmlType::Mxfp4 => 38,
                GgmlType::Q8_0 => 7,
            },
        }
    }

    /// Numbers that belong together; a row is a multiple.
    fn block(self) -> u64 {
        match self {
            GgufType::Float(_) => 1,
            GgufType::Blocks(kind) => kind.block() as u64,
        }
    }

    /// What a matrix that is stored so is written as, if nobody says it.
    pub(super) fn of(encoding: Encoding) -> GgufType {
        match encoding {
            Encoding::Float(FloatType::F32) => GgufType::F32,
            Encoding::Float(FloatType::BF16) => GgufType::BF16,
            _ => GgufType::F16,
        }
    }

    /// This, or what a row of so many columns gets instead, as `llama-quantize` does: small blocks where it is not whole large
    /// ones, plain numbers where it is no blocks at all.
    pub(super) fn of_row(self, columns: u64) -> GgufType {
        let smaller = match self {
            _ if columns.is_multiple_of(self.block()) => return self,
            GgufType::Blocks(GgmlType::Q4K) => GgufType::Blocks(GgmlType::Q5_0),
            GgufType::Blocks(GgmlType::Q5K) => GgufType::Blocks(GgmlType::Q5_1),
            GgufType::Blocks(GgmlType::Q6K) => GgufType::Q8_0,
            _ => GgufType::F16,
        };
        if columns.is_multiple_of(smaller.block()) { smaller } else { GgufType::F16 }
    }

    /// What embedding or head get where the others get this: nothing below 8 bits, or 6 in large blocks, as `llama-quantize` has them.
    pub(super) fn of_end(self) -> GgufType {
        match self {
            GgufType::Q4_0 => GgufType::Q8_0,
            GgufType::Blocks(GgmlType::Q4K | GgmlType::Q5K) => GgufType::Blocks(GgmlType::Q6K),
            other => other,
        }
    }

    /// Bytes of a row of so many columns, a multiple of the block's; `None` past 64 bits.
    pub(super) fn row_bytes(self, columns: u64) -> Option<u64> {
        match self {
            GgufType::Float(float) => columns.checked_mul(float.bytes() as u64),
            GgufType::Blocks(kind) => {
                (columns / self.block()).checked_mul(kind.block_bytes() as u64)
            }
        }
    }

    /// Whether what is stored so has these bytes already.
    pub(super) fn is(self, encoding: Encoding) -> bool {
        self.encoding() == encoding
    }

    /// How it is stored.
    fn encoding(self) -> Encoding {
        match self {
            GgufType::Float(float) => Encoding::Float(float),
            GgufType::Blocks(kind) => Encoding::Ggml(kind),
        }
    }

    /// How its rows are written.
    pub(super) fn form(self) -> Arc<dyn Form> {
        match self {
            GgufType::Float(float) => Arc::new(FloatForm(float)),
            GgufType::Blocks(_) => {
                Arc::new(PackedForm { encoding: self.encoding(), params: FloatType::F16 })
            }
        }
    }
}

fn names() -> String {
    GgufType::ALL.map(|it| it.to_string()).join(", ")
}

impl fmt::Display for GgufType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufType::Float(float) => f.pad(&float.dtype().name().to_lowercase()),
            GgufType::Blocks(kind) => f.pad(kind.name()),
        }
    }
}

impl FromStr for GgufType {
    type Err = GgufTypeParseError;

    fn from_str(text: &str) -> Result<Self, GgufTypeParseError> {
        let found = GgufType::ALL.into_iter().find(|it| it.to_string() == text);
        found.ok_or_else(|| GgufTypeParseError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q4_K: GgufType = GgufType::Blocks(GgmlType::Q4K);

    #[test]
    fn types_have_their_names_and_sizes() {
        for it in GgufType::ALL {
            assert_eq!(it.to_string().parse(), Ok(it));
            let bytes = it.row_bytes(512).unwrap();
            assert_eq!(it.form().row_bytes(512), [bytes]);
            let mut out = vec![0; bytes as usize];
            it.form().write(&[0.5; 512], 512, 0.0, &mut [&mut out]).unwrap();
        }
        assert_eq!((GgufType::Q4_0.row_bytes(64), Q4_K.row_bytes(512)), (Some(36), Some(288)));
        assert!("q3_k".parse::<GgufType>().unwrap_err().to_string().contains("q5_k, q4_k"));
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_what_llama_quantize_gives_them() {
        let of = |kind, columns| GgufType::Blocks(kind).of_row(columns).to_string();
        let found = [GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K, GgmlType::Q8_0]
            .map(|kind| [256, 576, 48].map(|columns| of(kind, columns)));
        let expected = [
            ["q4_k", "q5_0", "f16"],
            ["q5_k", "q5_1", "f16"],
            ["q6_k", "q8_0", "f16"],
            ["q8_0", "q8_0", "f16"],
        ];
        assert_eq!(found, expected);
        assert_eq!(GgufType::BF16.of_row(48), GgufType::BF16);
    }
}
