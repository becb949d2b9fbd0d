//! What the files of a model must hold: each matrix either as plain numbers or packed.

use std::collections::HashMap;

use super::{CatalogError, Tensor};
use crate::dtype::Dtype;
use crate::encoding::{Affine, PARAM_TYPES};
use crate::model::{LayerSpec, ModelSpec, ModuleFormat, Part, TensorKind};

/// A tensor the model cannot do without, if nothing is packed.
pub(super) struct Required {
    pub(super) name: String,
    kind: TensorKind,
    shape: Vec<u64>,
    layer: Option<usize>,
}

/// Every tensor the model cannot do without: those outside the layers, then layer by layer.
pub(super) fn required_tensors(model: &ModelSpec) -> Vec<Required> {
    let outer = model.outer_tensors().into_iter();
    let outer = outer.map(|(name, kind, shape)| Required { name, kind, shape, layer: None });
    let of_layer = |(layer, spec): (usize, &LayerSpec)| {
        spec.tensors().into_iter().map(move |tensor| Required {
            name: model.layer_tensor_name(layer, &tensor.leaf()),
            kind: tensor.kind,
            shape: tensor.shape,
            layer: Some(layer),
        })
    };
    outer.chain(model.layers.iter().enumerate().flat_map(of_layer)).collect()
}

/// A tensor as it must be.
pub(super) struct Expected {
    pub(super) name: String,
    pub(super) layer: Option<usize>,
    shape: Vec<u64>,
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    /// Plain numbers.
    Numbers,
    /// Codes of a packed matrix.
    Codes(Affine),
    /// Scales or biases of a packed matrix.
    Params(Affine),
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
    for Required { name, kind, shape, layer } in required_tensors(config) {
        let packed = match (name.strip_suffix(Part::Weight.ending()), &shape[..]) {
            (Some(module), &[rows, columns]) if kind == TensorKind::Matrix => {
                packed_format(module, config, there)?.map(|format| (module, format, rows, columns))
            }
            _ => None,
        };
        let Some((module, format, rows, columns)) = packed else {
            all.push(Expected { name, layer, shape, content: Content::Numbers });
            continue;
        };
        let (codes, params) = format.packed_shapes(rows, columns).ok_or_else(|| {
            CatalogError::NotWholeGroups { tensor: name.clone(), columns, format }
        })?;
        for part in [Part::Scales, Part::Biases] {
            let (name, shape) = (format!("{module}{}", part.ending()), params.clone());
            all.push(Expected { name, layer, shape, content: Content::Params(format) });
        }
        all.push(Expected { name, layer, shape: codes, content: Content::Codes(format) });
    }
    Ok(all)
}

/// In which format the matrix of a module must be packed, `None` for plain numbers.
fn packed_format(
    module: &str,
    config: &ModelSpec,
    there: &HashMap<&str, &Tensor>,
) -> Result<Option<Affine>, CatalogError> {
    let part = |part: Part| there.get(format!("{module}{}", part.ending()).as_str());
    let scales = part(Part::Scales);
    let reason = match config.quantization.as_ref().map(|quantization| quantization.of(module)) {
        Some(ModuleFormat::Packed(format)) => return Ok(Some(format)),
        Some(ModuleFormat::IfPacked(format)) => {
            let words = part(Part::Weight).is_some_and(|weight| weight.dtype == Dtype::U32);
            return Ok((scales.is_some() || words).then_some(format));
        }
        Some(ModuleFormat::Plain) => "the configuration says that its matrix is not quantized",
        None => "the configuration says nothing of quantization",
    };
    match scales {
        Some(scales) => Err(CatalogError::UnexpectedTensor { tensor: scales.name.clone(), reason }),
        None => Ok(None),
    }
}

impl Expected {
    /// Checks type and shape.
    ///
    /// # Errors
    /// [`CatalogError`], naming the tensor, what was expected and what was found.
    pub(super) fn check(&self, tensor: &Tensor) -> Result<(), CatalogError> {
        let (name, dtype) = (|| tensor.name.clone(), tensor.dtype);
        let types: &[Dtype] = match self.content {
            Content::Numbers | Content::Params(_) => &PARAM_TYPES,
            Content::Codes(_) => &[Dtype::U32],
        };
        if !types.contains(&dtype) {
            let expected = match self.content {
                Content::Numbers => "weights must be F32, F16 or BF16",
                Content::Codes(_) => "packed weights must be U32",
                Content::Params(_) => "scales and biases must be F32, F16 or BF16",
            };
            return Err(CatalogError::UnsupportedDtype { tensor: name(), dtype, expected });
        }
        if tensor.shape == self.shape {
            return Ok(());
        }
        let (expected, found) = (self.shape.clone(), tensor.shape.clone());
        Err(match self.content {
            Content::Numbers => CatalogError::ShapeMismatch { tensor: name(), expected, found },
            Content::Codes(format) | Content::Params(format) => {
                CatalogError::PackedShapeMismatch { tensor: name(), format, expected, found }
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
