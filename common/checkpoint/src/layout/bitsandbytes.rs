//! As bitsandbytes has matrices in 4 bits (`quant_method` `bitsandbytes`), which it takes for one row of numbers: `P.weight` U8
//! `[rows · columns / 2, 1]`, `P.weight.absmax` with a scale for each block, `P.weight.quant_map` F32 `[16]` with the levels, and
//! `P.weight.quant_state.bitsandbytes__nf4`, the bytes of a text in JSON that says shape, levels and blocks. Where scales are
//! bytes, `P.weight.nested_absmax` F32 has one for each 256 of them and `P.weight.nested_quant_map` F32 `[256]` what bytes mean;
//! what is added to each is in the text. Follows `QuantState.from_dict` in bitsandbytes.
//!
//! Blocks end where rows do: others are refused. Levels must be those that bitsandbytes has under that name, as its own kernels
//! look at none of the file's.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::format::Layout;
use super::module::Module;
use super::word::Word;
use crate::catalog::CatalogError;
use crate::container::{Lies, StoredTensor};
use crate::dtype::Dtype;
use crate::encoding::{Bnb, Encoding, Levels, Part};
use crate::error::Error;

/// What the name of the levels ends in.
const LEVELS: &str = ".weight.quant_map";
/// Longest text about a matrix that is read; those of bitsandbytes have 200 bytes.
const MAX_TEXT_BYTES: u64 = 4096;

/// The layout of `bitsandbytes`.
pub(super) struct BitsandbytesFiles;

/// What a file says of a matrix.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    quant_type: String,
    blocksize: u64,
    shape: Vec<u64>,
    /// The type that its numbers had before.
    #[serde(rename = "dtype")]
    _dtype: IgnoredAny,
    nested_blocksize: Option<u64>,
    nested_dtype: Option<String>,
    nested_offset: Option<f64>,
}

impl Layout for BitsandbytesFiles {
    fn words(&self) -> &'static [(&'static str, Word)] {
        &[
            (".weight", Word::Part(Part::Weight)),
            (".weight.absmax", Word::Part(Part::Scales)),
            (LEVELS, Word::Beside),
            (".weight.nested_absmax", Word::Part(Part::ScaleScales)),
            (".weight.nested_quant_map", Word::Part(Part::ScaleLevels)),
            // What is added to scales is said there.
            (".weight.quant_state.bitsandbytes__nf4", Word::Part(Part::ScaleOffset)),
            (".weight.quant_state.bitsandbytes__fp4", Word::Part(Part::ScaleOffset)),
        ]
    }

    fn canonical(&self, mut module: Module<'_>) -> Result<Vec<StoredTensor>, Error> {
        let weight = module.part(Part::Weight);
        let is_alone = module.tensors.len() == 1 && weight.is_some();
        if is_alone && weight.is_some_and(|weight| weight.dtype != Dtype::U8) {
            return Ok(module.unchanged_parts());
        }
        let module = &mut module;
        let Said { tensor, state } = said(module)?;
        let format = format(module, &tensor, &state)?;
        let encoding = Encoding::Bnb(format);
        let [rows, columns] = state.shape[..] else {
            return Err(tensor.refused("shape", &state.shape, "two dimensions").into());
        };
        let block = format.block() as u64;
        if !columns.is_multiple_of(block) {
            let tensor = module.word(Part::Weight);
            return Err(CatalogError::NotWholeGroups { tensor, columns, encoding }.into());
        }
        check_levels(module, format)?;
        // Of a matrix of another size than its bytes have, one of these is not the shape that they must have.
        let (pairs, blocks) = (columns / 2, columns / block);
        let flat = [rows.saturating_mul(pairs), 1];
        let codes = reshaped(module, Part::Weight, encoding, &flat, [rows, pairs])?;
        let flat = [rows.saturating_mul(blocks)];
        let scales = reshaped(module, Part::Scales, encoding, &flat, [rows, blocks])?;
        let codes = StoredTensor { encoding: Some(encoding), ..codes };
        let Some(offset) = state.nested_offset.filter(|_| format.is_nested()) else {
            return Ok(vec![codes, scales]);
        };
        let (bytes, lies) = (size_of::<f32>() as u64, Lies::Said((offset as f32).to_le_bytes()));
        let offset = StoredTensor { dtype: Dtype::F32, shape: vec![1], bytes, lies, ..tensor.it };
        let offset = module.named(offset, Part::ScaleOffset);
        let (shared, levels) = (module.take(Part::ScaleScales)?, module.take(Part::ScaleLevels)?);
        Ok(vec![codes, scales, shared, levels, offset])
    }
}

/// What a file says of a matrix, and where.
struct Said {
    tensor: Text,
    state: State,
}

/// The tensor that has it.
struct Text {
    it: StoredTensor,
    /// What the file calls it.
    name: String,
}

impl Text {
    /// The refusal of what a field says.
    fn refused(
        &self,
        field: &'static str,
        found: &dyn std::fmt::Debug,
        expected: &'static str,
    ) -> CatalogError {
        let (tensor, found) = (self.name.clone(), format!("{found:?}"));
        CatalogError::PackedFieldMismatch { tensor, field, expected, found }
    }
}

/// Reads what the file says of the matrix.
///
/// # Errors
/// [`CatalogError::MissingTensors`], [`CatalogError::TensorTwice`], [`CatalogError::UnsupportedDtype`],
/// [`CatalogError::UnexpectedTensor`], [`CatalogError::PackedText`] and [`CatalogError::PackedTextIsZeros`], by the file's
/// name; [`Error::Io`].
fn said(module: &mut Module<'_>) -> Result<Said, Error> {
    let name = module.part(Part::ScaleOffset).map(|tensor| tensor.name.clone());
    let it = module.take(Part::ScaleOffset)?;
    let name = name.expect("it is there: it was just taken");
    if it.dtype != Dtype::U8 {
        let (tensor, dtype, expected) = (name, it.dtype, "what is said of a matrix must be U8");
        return Err(CatalogError::UnsupportedDtype { tensor, dtype, expected }.into());
    }
    if it.bytes > MAX_TEXT_BYTES {
        let (tensor, reason) = (name, "what is said of a matrix has 4096 bytes at most");
        return Err(CatalogError::UnexpectedTensor { tensor, reason }.into());
    }
    let mut text = vec![0; it.bytes as usize];
    (module.read)(&it, 0, &mut text)?;
    // So it is where only the file's header was downloaded.
    if !text.is_empty() && text.iter().all(|byte| *byte == 0) {
        return Err(CatalogError::PackedTextIsZeros { tensor: name }.into());
    }
    match serde_json::from_slice(&text) {
        Ok(state) => Ok(Said { tensor: Text { it, name }, state }),
        Err(cause) => Err(CatalogError::PackedText { tensor: name, cause }.into()),
    }
}

/// How the matrix is stored.
///
/// # Errors
/// [`CatalogError::PackedFieldMismatch`] for what is not supported.
fn format(module: &Module<'_>, tensor: &Text, state: &State) -> Result<Bnb, CatalogError> {
    let is_nested = state.nested_offset.is_some()
        || [Part::ScaleScales, Part::ScaleLevels].iter().any(|part| module.has(*part));
    let levels = Levels::ALL.into_iter().find(|levels| levels.name() == state.quant_type);
    let Some(levels) = levels else {
        return Err(tensor.refused("quant_type", &state.quant_type, "\"nf4\" or \"fp4\""));
    };
    let Some(format) = Bnb::new(levels, state.blocksize, is_nested) else {
        return Err(tensor.refused("blocksize", &state.blocksize, "64 or 128"));
    };
    if !is_nested {
        return Ok(format);
    }
    if state.nested_blocksize != Some(Bnb::NESTED_BLOCK) {
        return Err(tensor.refused("nested_blocksize", &state.nested_blocksize, "256"));
    }
    if state.nested_dtype.as_deref() != Some("float32") {
        return Err(tensor.refused("nested_dtype", &state.nested_dtype, "\"float32\""));
    }
    if !state.nested_offset.is_some_and(|offset| (offset as f32).is_finite()) {
        return Err(tensor.refused("nested_offset", &state.nested_offset, "a number of 32 bits"));
    }
    Ok(format)
}

/// Reads the levels that the file has.
///
/// # Errors
/// [`CatalogError::MissingTensors`], [`CatalogError::PackedShapeMismatch`], [`CatalogError::UnsupportedDtype`] and
/// [`CatalogError::PackedLevels`], by the file's name; [`Error::Io`].
fn check_levels(module: &Module<'_>, format: Bnb) -> Result<(), Error> {
    let name = || format!("{}{LEVELS}", module.path);
    let found = module.tensors.iter().find(|(_, tensor)| tensor.name == name());
    let Some((_, tensor)) = found else {
        return Err(CatalogError::MissingTensors { tensors: vec![name()] }.into());
    };
    let (expected, encoding) = (format.levels().table(), Encoding::Bnb(format));
    if (tensor.dtype, &tensor.shape[..]) != (Dtype::F32, &[16]) {
        let (found, expected) = (tensor.shape.clone(), vec![16]);
        return Err(match tensor.dtype {
            Dtype::F32 => {
                CatalogError::PackedShapeMismatch { tensor: name(), encoding, expected, found }
            }
            dtype => {
                let expected = "levels must be F32";
                CatalogError::UnsupportedDtype { tensor: name(), dtype, expected }
            }
        }
        .into());
    }
    let mut bytes = [0; 64];
    (module.read)(tensor, 0, &mut bytes)?;
    let found = bytes.as_chunks().0.iter().map(|level| f32::from_le_bytes(*level));
    match found.zip(expected).enumerate().find(|(_, (found, expected))| found != expected) {
        None => Ok(()),
        Some((code, (found, expected))) => {
            let tensor = name();
            Err(CatalogError::PackedLevels { tensor, encoding, code, expected, found }.into())
        }
    }
}

/// A part that the file has as one row of numbers, with the rows of its matrix.
///
/// # Errors
/// [`CatalogError::MissingTensors`] and [`CatalogError::PackedShapeMismatch`], by the file's name.
fn reshaped(
    module: &mut Module<'_>,
    part: Part,
    encoding: Encoding,
    flat: &[u64],
    shape: [u64; 2],
) -> Result<StoredTensor, CatalogError> {
    if let Some(found) = module.part(part).filter(|found| found.shape != flat) {
        let (tensor, expected, found) = (found.name.clone(), flat.to_vec(), found.shape.clone());
        return Err(CatalogError::PackedShapeMismatch { tensor, encoding, expected, found });
    }
    Ok(StoredTensor { shape: shape.to_vec(), ..module.take(part)? })
}
