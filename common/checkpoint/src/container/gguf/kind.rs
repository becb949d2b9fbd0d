//! The types of tensors, by the numbers that ggml gives them.

use std::fmt;

use crate::dtype::Dtype;
use crate::encoding::{Encoding, GgmlType};

/// What the bytes of a tensor are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Plain numbers.
    Plain(Dtype),
    /// Blocks of neighbours of a row.
    Blocks(GgmlType),
}

/// Types that are plain numbers.
const PLAIN: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::BF16),
];

impl Kind {
    /// The kind with that number.
    pub fn of_id(id: u32) -> Option<Kind> {
        let plain = PLAIN.into_iter().find(|(own, _)| *own == id).map(|(_, it)| Kind::Plain(it));
        plain.or_else(|| GgmlType::of_id(id).map(Kind::Blocks))
    }

    /// How a matrix of this kind is stored, if not as plain numbers.
    pub fn encoding(self) -> Option<Encoding> {
        match self {
            Kind::Plain(_) => None,
            Kind::Blocks(kind) => Some(Encoding::Ggml(kind)),
        }
    }

    /// Bytes of a tensor of this kind and shape, outermost dimension first; `None` if there is no such tensor: too many numbers,
    /// or rows that are not whole blocks.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        match self {
            Kind::Plain(dtype) => dtype.tensor_bytes(shape).ok(),
            Kind::Blocks(kind) => {
                let (columns, rows) = shape.split_last()?;
                let rows = rows.iter().try_fold(1u64, |product, &it| product.checked_mul(it))?;
                rows.checked_mul(kind.bytes(*columns)?)
            }
        }
    }

    /// Element type and dimensions of such a tensor as everybody else knows tensors: blocks are bytes, of each row as many as it
    /// has.
    pub(super) fn stored(self, shape: &[u64]) -> (Dtype, Vec<u64>) {
        match (self, shape) {
            (Kind::Plain(dtype), _) => (dtype, shape.to_vec()),
            (Kind::Blocks(kind), [rows @ .., columns]) => {
                let row_bytes = kind.bytes(*columns).unwrap_or(0); // Checked when its size was.
                (Dtype::U8, rows.iter().copied().chain([row_bytes]).collect())
            }
            (Kind::Blocks(_), []) => (Dtype::U8, Vec::new()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Plain(dtype) => dtype.fmt(f),
            Kind::Blocks(kind) => write!(f, "ggml-{kind}"),
        }
    }
}
