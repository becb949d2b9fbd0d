//! The tensors of an APR file as everybody else knows tensors.

use std::collections::HashSet;

use super::error::AprError;
use super::index::TensorInfo;
use super::kind::Kind;
use crate::container::tensor::{Lies, StoredTensor};
use crate::dtype::Dtype;
use crate::encoding::{AprType, Encoding, Part};

/// Every tensor of the file, by offset: a matrix of codes in the parts that its encoding has, all else that is no plain numbers as
/// bytes that nobody computes with.
///
/// # Errors
/// [`AprError::ScaleNameTaken`] if the scale of a matrix has the name of another tensor.
pub(super) fn places(tensors: Vec<TensorInfo>) -> Result<Vec<StoredTensor>, AprError> {
    let mut all: Vec<StoredTensor> = tensors.into_iter().flat_map(parts).collect();
    all.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    let mut names = HashSet::with_capacity(all.len());
    match all.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(twice) => Err(AprError::ScaleNameTaken { tensor: twice.name.clone() }),
        None => Ok(all),
    }
}

/// What one tensor of the file is.
fn parts(tensor: TensorInfo) -> Vec<StoredTensor> {
    let TensorInfo { name, kind, shape, start, bytes } = tensor;
    let encoding = kind.encoding();
    let stored = |name, dtype, shape, offset, bytes, encoding| StoredTensor {
        name,
        file: 0,
        dtype,
        shape,
        offset,
        bytes,
        lies: Lies::Together,
        encoding,
    };
    match (kind, &shape[..]) {
        (Kind::Plain(dtype), _) => vec![stored(name, dtype, shape, start, bytes, None)],
        (Kind::Codes(AprType::Q8), &[_, _]) if Part::split(&name).is_some() => {
            // The scale comes first, and is one for the whole matrix.
            let scale_bytes = AprType::SCALE_BYTES as u64;
            let module = Part::split(&name).map_or(name.as_str(), |(module, _)| module);
            let scale = format!("{module}{}", Part::Scales.ending());
            let (codes, count) = (start + scale_bytes, bytes - scale_bytes);
            vec![
                stored(scale, Dtype::F32, vec![1], start, scale_bytes, None),
                stored(name, Dtype::I8, shape, codes, count, encoding),
            ]
        }
        (_, &[rows, columns]) => {
            let specs = encoding.and_then(|encoding| Encoding::parts(encoding, [rows, columns]));
            let single = specs.and_then(|specs| match &specs[..] {
                [only] => Some(only.shape.clone()),
                _ => None,
            });
            // Rows that are not whole blocks cannot be read by themselves: whoever wants the matrix is told so.
            let shape = single.unwrap_or_else(|| vec![bytes]);
            vec![stored(name, Dtype::U8, shape, start, bytes, encoding)]
        }
        _ => vec![stored(name, Dtype::U8, vec![bytes], start, bytes, None)],
    }
}
