//! The index of an APR file: which tensors there are, and where.

use super::error::AprError;
use super::kind::Kind;
use super::layout::{ALIGNMENT, MAX_NAME_BYTES, MAX_RANK, aligned};

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// What its bytes are.
    pub kind: Kind,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte in the file.
    pub start: u64,
    /// Size in bytes: what kind and shape need.
    pub bytes: u64,
}

/// Reads and checks an index of so many tensors, by name; data start at `data_start`.
///
/// # Errors
/// [`AprError`], naming the entry.
pub(super) fn parse(
    mut index: &[u8],
    tensors: u32,
    data_start: u64,
) -> Result<Vec<TensorInfo>, AprError> {
    // The header was checked: the index has at least twenty bytes for each.
    let mut all: Vec<TensorInfo> = Vec::with_capacity(tensors as usize);
    for entry in 0..tensors {
        let tensor = one(&mut index, entry, data_start)?;
        if let Some(before) = all.last().filter(|before| before.name >= tensor.name) {
            let (before, tensor) = (before.name.clone(), tensor.name);
            return Err(AprError::NotSorted { before, tensor });
        }
        all.push(tensor);
    }
    Ok(all)
}

/// Reads one entry and moves `index` behind it.
fn one(index: &mut &[u8], entry: u32, data_start: u64) -> Result<TensorInfo, AprError> {
    let cut = || AprError::EntryCut { entry };
    let bytes = u16::from_le_bytes(take(index).ok_or_else(cut)?);
    if usize::from(bytes) > MAX_NAME_BYTES {
        return Err(AprError::NameTooLong { entry, bytes });
    }
    let name = index.split_off(..usize::from(bytes)).ok_or_else(cut)?;
    let name = std::str::from_utf8(name).map_err(|_| AprError::NameNotUtf8 { entry })?.to_owned();
    let [id, dimensions] = take(index).ok_or_else(cut)?;
    let Some(kind) = Kind::of_id(id) else {
        return Err(match id {
            2 => AprError::FormerBf16 { tensor: name },
            _ => AprError::UnknownKind { tensor: name, id },
        });
    };
    if usize::from(dimensions) > MAX_RANK {
        return Err(AprError::TooManyDimensions { tensor: name, dimensions });
    }
    let mut long = || take(index).map(u64::from_le_bytes).ok_or_else(cut);
    let shape = (0..dimensions).map(|_| long()).collect::<Result<Vec<_>, _>>()?;
    let (offset, found) = (long()?, long()?);
    let Some(expected) = kind.bytes(&shape) else {
        return Err(AprError::NoSize { tensor: name, kind, shape });
    };
    if expected != found {
        return Err(AprError::WrongSize { tensor: name, kind, shape, expected, found });
    }
    if !offset.is_multiple_of(ALIGNMENT) {
        return Err(AprError::TensorUnaligned { tensor: name, offset });
    }
    let start = data_start.checked_add(offset);
    let end = start.and_then(|start| start.checked_add(aligned(found)?));
    match (start, end) {
        (Some(start), Some(_)) => Ok(TensorInfo { name, kind, shape, start, bytes: found }),
        _ => Err(AprError::TensorOutside { tensor: name }),
    }
}

/// Checks that no tensor shares bytes with another; where the last one ends with the zeros behind it, `data_start` if there is
/// none.
///
/// # Errors
/// [`AprError::Overlap`], naming both.
pub(super) fn check_places(tensors: &[TensorInfo], data_start: u64) -> Result<u64, AprError> {
    let mut placed: Vec<&TensorInfo> = tensors.iter().collect();
    placed.sort_by_key(|tensor| (tensor.start, tensor.bytes));
    let mut end = data_start;
    let mut last: Option<&TensorInfo> = None;
    for tensor in placed {
        let start = tensor.start;
        if let Some(before) = last.filter(|_| start < end) {
            let (tensor, before) = (tensor.name.clone(), before.name.clone());
            return Err(AprError::Overlap { tensor, before, start, end });
        }
        let room = aligned(tensor.bytes).expect("checked when its entry was read");
        (end, last) = (start + room, Some(tensor)); // Likewise.
    }
    Ok(end)
}

/// The next bytes, if there are so many.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    bytes.split_off(..N)?.first_chunk().copied()
}
