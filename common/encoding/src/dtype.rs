//! Element types a safetensors file may hold: names, widths, and the order writers sort by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One element type, in the declaration order of the reference implementation.
///
/// That order is also the one its writer sorts by, so `Ord` means "ascending writer order".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the definition")]
pub enum Dtype {
    #[serde(rename = "BOOL")]
    Bool,
    F4,
    #[serde(rename = "F6_E2M3")]
    F6E2M3,
    #[serde(rename = "F6_E3M2")]
    F6E3M2,
    U8,
    I8,
    #[serde(rename = "F8_E5M2")]
    F8E5M2,
    #[serde(rename = "F8_E4M3")]
    F8E4M3,
    #[serde(rename = "F8_E8M0")]
    F8E8M0,
    #[serde(rename = "F8_E4M3FNUZ")]
    F8E4M3FNUZ,
    #[serde(rename = "F8_E5M2FNUZ")]
    F8E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// Every element type, in writer order.
const ALL: [Dtype; 22] = [
    Dtype::Bool,
    Dtype::F4,
    Dtype::F6E2M3,
    Dtype::F6E3M2,
    Dtype::U8,
    Dtype::I8,
    Dtype::F8E5M2,
    Dtype::F8E4M3,
    Dtype::F8E8M0,
    Dtype::F8E4M3FNUZ,
    Dtype::F8E5M2FNUZ,
    Dtype::I16,
    Dtype::U16,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I32,
    Dtype::U32,
    Dtype::F32,
    Dtype::C64,
    Dtype::F64,
    Dtype::I64,
    Dtype::U64,
];

impl Dtype {
    /// Width of one element in bits; some formats are narrower than a byte.
    pub fn bits(self) -> u64 {
        match self {
            Dtype::F4 => 4,
            Dtype::F6E2M3 | Dtype::F6E3M2 => 6,
            Dtype::Bool
            | Dtype::U8
            | Dtype::I8
            | Dtype::F8E5M2
            | Dtype::F8E4M3
            | Dtype::F8E8M0
            | Dtype::F8E4M3FNUZ
            | Dtype::F8E5M2FNUZ => 8,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::BF16 => 16,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 32,
            Dtype::C64 | Dtype::F64 | Dtype::I64 | Dtype::U64 => 64,
        }
    }

    /// The name in a file's header, such as `BF16` or `F8_E4M3`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "BOOL",
            Dtype::F4 => "F4",
            Dtype::F6E2M3 => "F6_E2M3",
            Dtype::F6E3M2 => "F6_E3M2",
            Dtype::U8 => "U8",
            Dtype::I8 => "I8",
            Dtype::F8E5M2 => "F8_E5M2",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::F8E8M0 => "F8_E8M0",
            Dtype::F8E4M3FNUZ => "F8_E4M3FNUZ",
            Dtype::F8E5M2FNUZ => "F8_E5M2FNUZ",
            Dtype::I16 => "I16",
            Dtype::U16 => "U16",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::I32 => "I32",
            Dtype::U32 => "U32",
            Dtype::F32 => "F32",
            Dtype::C64 => "C64",
            Dtype::F64 => "F64",
            Dtype::I64 => "I64",
            Dtype::U64 => "U64",
        }
    }

    /// The type of that exact, case-sensitive name.
    pub fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of a tensor of this type and shape.
    ///
    /// # Errors
    /// [`SizeError`] when the product does not fit 64 bits or is not a whole number of bytes.
    pub fn tensor_bytes(self, shape: &[u64]) -> Result<u64, SizeError> {
        let bits = shape
            .iter()
            .try_fold(1u64, |elements, &dimension| elements.checked_mul(dimension))
            .and_then(|elements| elements.checked_mul(self.bits()))
            .ok_or(SizeError::Overflow)?;
        if bits % 8 != 0 {
            return Err(SizeError::PartialByte { bits });
        }
        Ok(bits / 8)
    }
}

/// Why a shape of some element type has no size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// The product of the dimensions and the element width exceeds 64 bits.
    #[error("its size does not fit 64 bits")]
    Overflow,
    /// Elements narrower than a byte whose count leaves a partial byte.
    #[error("its {bits} bits are not a whole number of bytes")]
    PartialByte {
        /// The product of the dimensions and the element width.
        bits: u64,
    },
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_agree_with_serde() {
        for dtype in ALL {
            assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("{:?}", dtype.name()));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
        }
        assert!(ALL.is_sorted());
        assert_eq!(Dtype::parse("bf16"), None);
    }

    #[test]
    fn sizes_of_narrow_types_are_whole_bytes_or_refused() {
        assert_eq!(Dtype::F4.tensor_bytes(&[4]), Ok(2));
        assert_eq!(Dtype::F4.tensor_bytes(&[3]), Err(SizeError::PartialByte { bits: 12 }));
        assert_eq!(Dtype::F6E2M3.tensor_bytes(&[4]), Ok(3));
        assert_eq!(Dtype::BF16.tensor_bytes(&[]), Ok(2));
        assert_eq!(Dtype::BF16.tensor_bytes(&[7, 0]), Ok(0));
        // A zero first still passes, a zero last comes after the overflow: a left fold.
        assert_eq!(Dtype::U8.tensor_bytes(&[0, 1 << 63, 4]), Ok(0));
        assert_eq!(Dtype::U8.tensor_bytes(&[1 << 63, 4, 0]), Err(SizeError::Overflow));
    }
}
