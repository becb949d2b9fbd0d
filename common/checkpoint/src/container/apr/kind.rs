//! The element types of an APR file, by their numbers.

use std::fmt;

use crate::dtype::Dtype;
use crate::encoding::{AprType, Encoding, GgmlType};

/// What the bytes of a tensor are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain numbers.
    Plain(Dtype),
    /// Blocks of ggml.
    Ggml(GgmlType),
    /// Codes of the format's own.
    Codes(AprType),
}

/// Every kind with its number, as writers of today number them.
pub const KINDS: [(u8, Kind); 12] = [
    (0, Kind::Plain(Dtype::F32)),
    (1, Kind::Plain(Dtype::F16)),
    (3, Kind::Plain(Dtype::F64)),
    (4, Kind::Plain(Dtype::I32)),
    (5, Kind::Plain(Dtype::I64)),
    (6, Kind::Plain(Dtype::I8)),
    (7, Kind::Plain(Dtype::U8)),
    (12, Kind::Ggml(GgmlType::Q4K)),
    (14, Kind::Ggml(GgmlType::Q6K)),
    (30, Kind::Plain(Dtype::BF16)),
    (128, Kind::Codes(AprType::Q4)),
    (129, Kind::Codes(AprType::Q8)),
];

/// The numbers that older writers gave to the format's own codes.
const FORMER: [(u8, Kind); 2] = [(8, Kind::Codes(AprType::Q4)), (9, Kind::Codes(AprType::Q8))];

impl Kind {
    /// The kind with that number.
    pub fn of_id(id: u8) -> Option<Kind> {
        KINDS.into_iter().chain(FORMER).find(|(own, _)| *own == id).map(|(_, kind)| kind)
    }

    /// Its number, as it is written; `None` for what the format cannot say.
    pub fn id(self) -> Option<u8> {
        KINDS.into_iter().find(|(_, own)| *own == self).map(|(id, _)| id)
    }

    /// How a matrix of this kind is stored, if not as plain numbers.
    pub fn encoding(self) -> Option<Encoding> {
        match self {
            Kind::Plain(_) => None,
            Kind::Ggml(kind) => Some(Encoding::Ggml(kind)),
            Kind::Codes(kind) => Some(Encoding::Apr(kind)),
        }
    }

    /// Bytes of a tensor of this kind and shape; `None` if there is no such tensor: too many numbers, or rows that are not
    /// whole blocks.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let product =
            |all: &[u64]| all.iter().try_fold(1u64, |product, &it| product.checked_mul(it));
        match self {
            Kind::Plain(dtype) => dtype.tensor_bytes(shape).ok(),
            Kind::Ggml(kind) => {
                let (columns, rows) = shape.split_last()?;
                product(rows)?.checked_mul(kind.bytes(*columns)?)
            }
            Kind::Codes(kind) => kind.bytes(product(shape)?),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Plain(dtype) => dtype.fmt(f),
            Kind::Ggml(kind) => write!(f, "ggml-{kind}"),
            Kind::Codes(kind) => write!(f, "apr-{kind}"),
        }
    }
}
