//! What the files of a model must hold: each matrix either as plain numbers or packed.

use std::collections::HashMap;

use super::error::CatalogError;
use super::tensor::Tensor;
use crate::dtype::Dtype;
use crate::encoding::{Encoding, ModuleTensors, Part, recognise};
use crate::model::{ModelSpec, Required, TensorKind, same_vector};

/// Element types of what is no matrix.
const PLAIN: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// A tensor as it must be.
pub(super) struct Expected {
    pub(super) name: String,
    pub(super) layer: Option<usize>,
    shape: Vec<u64>,
    /// Element types that it may have, and the same as a sentence.
    types: (&'static [Dtype], &'static str),
    /// How the matrix is stored that this is a part of,
    encoding: Option<Encoding>,
    /// and whether it is its weight.
    is_weight: bool,
    /// Whether it belongs to no module: its axes of 1 are for nothing but its numbers' order.
    is_numbers: bool,
}

/// What must be there, given what is there: a matrix that has scales must be packed.
///
/// # Errors
/// [`CatalogError`] for a matrix that is packed and should not be, or cannot be.
pub(super) fn expected_tensors(
    config: &ModelSpec,
    there: &HashMap<&str, &Tensor>,
) -> Result<Vec<Expected>, CatalogError> {
    let mut all = Vec::new();
    for Required { name, kind, shape, layer } in config.required_tensors() {
        let matrix = match (name.strip_suffix(Part::Weight.ending()), &shape[..]) {
            (Some(module), &[rows, columns]) if kind == TensorKind::Matrix => {
                stored(module, config, there)?.map(|encoding| (module, encoding, [rows, columns]))
            }
            _ => None,
        };
        let Some((module, encoding, matrix)) = matrix else {
            let types = (&PLAIN[..], "weights must be F32, F16 or BF16");
            let is_numbers = kind == TensorKind::Parameter;
            let (encoding, is_weight) = (None, false);
            all.push(Expected { name, layer, shape, types, encoding, is_weight, is_numbers });
            continue;
        };
        let parts = encoding.parts(matrix).ok_or_else(|| {
            let [_, columns] = matrix;
            CatalogError::NotWholeGroups { tensor: name.clone(), columns, encoding }
        })?;
        all.extend(parts.into_iter().map(|part| Expected {
            name: format!("{module}{}", part.part.ending()),
            layer,
            shape: part.shape,
            types: (part.types, part.must),
            encoding: Some(encoding),
            is_weight: part.part == Part::Weight,
            is_numbers: false,
        }));
    }
    Ok(all)
}

/// How the matrix of a module is stored; `None` if its weight is not there or of no type that any encoding has.
///
/// # Errors
/// [`CatalogError::UnexpectedTensor`] for a part that this encoding does not have.
fn stored(
    module: &str,
    config: &ModelSpec,
    there: &HashMap<&str, &Tensor>,
) -> Result<Option<Encoding>, CatalogError> {
    let part = |part: Part| there.get(format!("{module}{}", part.ending()).as_str());
    let said = config.module_format(module);
    let dtype = |it: Part| part(it).map(|tensor| tensor.dtype);
    let by_format = part(Part::Weight).and_then(|weight| weight.stored.encoding);
    let encoding = by_format.or_else(|| recognise(&ModuleTensors { dtype: &dtype }, said));
    if matches!(encoding, None | Some(Encoding::Float(_)))
        && let Some(scales) = part(Part::Scales)
    {
        let reason = match said {
            Some(_) => "the configuration says that its matrix is not quantized",
            None => "the configuration says nothing of quantization",
        };
        return Err(CatalogError::UnexpectedTensor { tensor: scales.name.clone(), reason });
    }
    Ok(encoding)
}

impl Expected {
    /// How the matrix is stored whose weight this is.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        self.encoding.filter(|_| self.is_weight)
    }

    /// Checks type and shape.
    ///
    /// # Errors
    /// [`CatalogError`], naming the tensor, what was expected and what was found.
    pub(super) fn check(&self, tensor: &Tensor) -> Result<(), CatalogError> {
        let (name, dtype, (types, expected)) = (|| tensor.name.clone(), tensor.dtype, self.types);
        if !types.contains(&dtype) {
            return Err(CatalogError::UnsupportedDtype { tensor: name(), dtype, expected });
        }
        if tensor.shape == self.shape
            || (self.is_numbers && same_vector(&tensor.shape, &self.shape))
        {
            return Ok(());
        }
        let (expected, found) = (self.shape.clone(), tensor.shape.clone());
        Err(match self.encoding {
            None | Some(Encoding::Float(_)) => {
                CatalogError::ShapeMismatch { tensor: name(), expected, found }
            }
            Some(encoding) => {
                CatalogError::PackedShapeMismatch { tensor: name(), encoding, expected, found }
            }
        })
    }
}

/// Checks that scales and biases of one matrix have one type.
///
/// # Errors
/// [`CatalogError::ParamTypesDiffer`]
pub(super) fn check_params(there: &HashMap<&str, &Tensor>) -> Result<(), CatalogError> {
    for (name, scales) in there {
        let Some(module) = name.strip_suffix(Part::Scales.ending()) else { continue };
        let biases = there.get(format!("{module}{}", Part::Biases.ending()).as_str());
        if let Some(biases) = biases.filter(|biases| biases.dtype != scales.dtype) {
            let (module, scales, biases) = (module.to_owned(), scales.dtype, biases.dtype);
            return Err(CatalogError::ParamTypesDiffer { module, scales, biases });
        }
    }
    Ok(())
}
