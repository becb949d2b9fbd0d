//! What the layouts of whole numbers have in common.

use super::module::Module;
use crate::catalog::CatalogError;
use crate::container::{Across, Lies, StoredTensor, Strides};
use crate::dtype::Dtype;
use crate::encoding::{Encoding, Integer, Part};

/// Bits of the words that codes are packed in.
pub(super) const WORD: u64 = 32;
/// Bytes of a tensor that are read at once where all of it is looked at.
pub(super) const AT_ONCE: u64 = 64 << 10;

/// The two dimensions of the words of codes of a module.
///
/// # Errors
/// [`CatalogError::MissingTensors`], [`CatalogError::UnsupportedDtype`] and [`CatalogError::UnexpectedTensor`], by the file's
/// name.
pub(super) fn words(module: &Module<'_>) -> Result<[u64; 2], CatalogError> {
    let Some(found) = module.part(Part::Weight) else {
        return Err(CatalogError::MissingTensors { tensors: vec![module.word(Part::Weight)] });
    };
    of_words(found)?;
    match found.shape[..] {
        [first, second] => Ok([first, second]),
        _ => {
            let (tensor, reason) = (found.name.clone(), "codes lie in a matrix of words");
            Err(CatalogError::UnexpectedTensor { tensor, reason })
        }
    }
}

/// Refuses a tensor that is not words of codes.
fn of_words(tensor: &StoredTensor) -> Result<(), CatalogError> {
    let (dtype, expected) = (tensor.dtype, "codes must be packed in I32");
    match dtype {
        Dtype::I32 => Ok(()),
        _ => Err(CatalogError::UnsupportedDtype { tensor: tensor.name.clone(), dtype, expected }),
    }
}

/// Takes a part of a module that must have this shape in the file.
///
/// # Errors
/// [`CatalogError::MissingTensors`], [`CatalogError::TensorTwice`] and [`CatalogError::PackedShapeMismatch`], by the file's
/// name.
pub(super) fn take(
    module: &mut Module<'_>,
    part: Part,
    encoding: Encoding,
    shape: &[u64],
) -> Result<StoredTensor, CatalogError> {
    if let Some(found) = module.part(part).filter(|found| found.shape != shape) {
        let (tensor, found) = (found.name.clone(), found.shape.clone());
        let expected = shape.to_vec();
        return Err(CatalogError::PackedShapeMismatch { tensor, encoding, expected, found });
    }
    module.take(part)
}

/// The same of words of codes.
///
/// # Errors
/// As [`take`], and [`CatalogError::UnsupportedDtype`].
pub(super) fn take_words(
    module: &mut Module<'_>,
    part: Part,
    encoding: Encoding,
    shape: &[u64],
) -> Result<StoredTensor, CatalogError> {
    module.part(part).map_or(Ok(()), of_words)?;
    take(module, part, encoding, shape)
}

/// How many groups rows of so many codes have.
///
/// # Errors
/// [`CatalogError::NotWholeGroups`] if such rows are not whole words, by the file's name of the codes.
pub(super) fn groups(
    module: &Module<'_>,
    format: Integer,
    columns: u64,
) -> Result<u64, CatalogError> {
    let (tensor, encoding) = (|| module.word(Part::Weight), Encoding::Integer(format));
    let refused = || CatalogError::NotWholeGroups { tensor: tensor(), columns, encoding };
    format.groups(columns).ok_or_else(refused)
}

/// A matrix whose columns the file has as rows, `[columns, rows]`, of numbers or of whole words.
pub(super) fn turned(tensor: StoredTensor) -> StoredTensor {
    let mut shape = tensor.shape.clone();
    shape.reverse();
    let lies = Lies::Apart(Strides { row: 1, column: shape.first().copied().unwrap_or(0) });
    StoredTensor { shape, lies, ..tensor }
}

/// Zero points that the file packs across rows: bytes of as many codes of a row as it has groups.
pub(super) fn zeros(tensor: StoredTensor, rows: u64, across: Across) -> StoredTensor {
    // No more than the scales have.
    let row_bytes = (across.columns * u64::from(across.bits)).div_ceil(8);
    let (shape, bytes) = (vec![rows, row_bytes], rows * row_bytes);
    StoredTensor { dtype: Dtype::U8, shape, bytes, lies: Lies::Across(across), ..tensor }
}

/// The codes of a matrix, as the weight of it.
pub(super) fn weight(tensor: StoredTensor, format: Integer) -> StoredTensor {
    StoredTensor { dtype: Dtype::U32, encoding: Some(Encoding::Integer(format)), ..tensor }
}

/// Which columns have which groups: `None` where neighbours share one, in order, or where a column says that it has none yet.
///
/// # Errors
/// [`CatalogError::NoSuchGroup`], and whatever reading them says.
pub(super) fn order(
    module: &mut Module<'_>,
    format: Integer,
    columns: u64,
) -> Result<Option<StoredTensor>, crate::Error> {
    let encoding = Encoding::Integer(format);
    let tensor = take_words(module, Part::Groups, encoding, &[columns])?;
    let count = groups(module, format, columns)?;
    let group = format.group().map_or(columns, |group| group as u64).max(1);
    let mut is_usual = true;
    let has_all = in_pieces(module, &tensor, |start, piece| {
        for (index, found) in (start / 4..).zip(piece.as_chunks::<4>().0) {
            let found = i32::from_le_bytes(*found);
            if found == -1 {
                return Ok(false);
            }
            if !u64::try_from(found).is_ok_and(|found| found < count) {
                let tensor = module.word(Part::Groups);
                return Err(
                    CatalogError::NoSuchGroup { tensor, index, found, groups: count }.into()
                );
            }
            is_usual &= index / group == found as u64;
        }
        Ok(true)
    })?;
    Ok((has_all && !is_usual).then_some(StoredTensor { dtype: Dtype::U32, ..tensor }))
}

/// Looks at all bytes of a tensor, in pieces of bounded size, each with where it begins, as long as `look` says that it wants
/// more: whether it did to the end.
///
/// # Errors
/// Whatever `look` or reading says.
pub(super) fn in_pieces(
    module: &Module<'_>,
    tensor: &StoredTensor,
    mut look: impl FnMut(u64, &[u8]) -> Result<bool, crate::Error>,
) -> Result<bool, crate::Error> {
    let mut piece = vec![0; AT_ONCE.min(tensor.bytes) as usize];
    for start in (0..tensor.bytes).step_by(AT_ONCE as usize) {
        let piece = &mut piece[..(tensor.bytes - start).min(AT_ONCE) as usize];
        (module.read)(tensor, start, piece)?;
        if !look(start, piece)? {
            return Ok(false);
        }
    }
    Ok(true)
}
