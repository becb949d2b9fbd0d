//! Which tensors a GGUF file has, and where.

use std::collections::HashSet;

use super::cursor::{Cursor, Stop};
use super::error::GgufError;
use super::kind::Kind;
use super::limits::{MAX_NAME_BYTES, MAX_RANK};
use crate::encoding::GgmlType;

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name, as the file has it.
    pub name: String,
    /// What its bytes are.
    pub kind: Kind,
    /// Dimensions, outermost first; none is 0.
    pub shape: Vec<u64>,
    /// First byte in the file.
    pub start: u64,
    /// Size in bytes: what kind and shape need.
    pub bytes: u64,
}

/// Reads what is said of so many tensors; each starts so many bytes into the data as yet.
///
/// # Errors
/// [`Stop`], naming the tensor.
pub(super) fn parse(cursor: &mut Cursor<'_>, tensors: u64) -> Result<Vec<TensorInfo>, Stop> {
    let mut all = Vec::new();
    let mut names = HashSet::new();
    for index in 0..tensors {
        let tensor = one(cursor, index)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufError::DuplicateTensor { tensor: tensor.name }.into());
        }
        all.push(tensor);
    }
    Ok(all)
}

fn one(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorInfo, Stop> {
    let name = cursor.name(&format!("the name of tensor {index}"))?;
    if name.len() > MAX_NAME_BYTES {
        return Err(GgufError::NameTooLong { index, bytes: name.len() }.into());
    }
    let what = format!("tensor {name:?}");
    let dimensions = cursor.u32(&what)?;
    if !(1..=MAX_RANK).contains(&dimensions) {
        return Err(GgufError::Dimensions { tensor: name, dimensions }.into());
    }
    let shape = (0..dimensions).map(|_| cursor.u64(&what)).collect::<Result<Vec<_>, _>>();
    let mut shape = shape?;
    shape.reverse(); // The file has the fastest dimension first.
    if shape.contains(&0) {
        return Err(GgufError::Empty { tensor: name, shape }.into());
    }
    let id = cursor.u32(&what)?;
    let Some(kind) = Kind::of_id(id) else {
        let unknown =
            GgufError::UnknownKind { tensor: name, id, name: GgmlType::name_of_other(id) };
        return Err(unknown.into());
    };
    let start = cursor.u64(&what)?;
    let Some(bytes) = kind.bytes(&shape) else {
        return Err(GgufError::NoSize { tensor: name, kind, shape }.into());
    };
    Ok(TensorInfo { name, kind, shape, start, bytes })
}

/// Says where in the file each tensor starts, and checks that they follow each other, in whatever order they are listed, and that
/// the last one ends in the file.
///
/// # Errors
/// [`GgufError::Offset`], [`GgufError::Truncated`]
pub(super) fn place(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    tensors.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    let mut expected = 0u64; // Below the file's length, which is that of a real file.
    for tensor in tensors {
        let (found, name) = (tensor.start, || tensor.name.clone());
        if found != expected {
            return Err(GgufError::Offset { tensor: name(), found, expected, alignment });
        }
        let end = data_start.saturating_add(found).saturating_add(tensor.bytes);
        if end > file_bytes {
            return Err(GgufError::Truncated { tensor: name(), end, file_bytes });
        }
        tensor.start = data_start + found;
        expected = (found + tensor.bytes).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    }
    Ok(())
}
