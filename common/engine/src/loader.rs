//! Finding the weights of a layer by name and checking that they are what the configuration says.

use std::ops::Range;
use std::sync::Arc;

use cake_checkpoint::{Affine, MappedMatrix, MappedPacked, MappedTensor, ModelConfig};

use crate::error::Error;
use crate::kernel::Precision;
use crate::linear::Linear;
use crate::matrix::{StoredMatrix, check_shape, float_type};
use crate::norm::RmsNorm;
use crate::options::{Numerics, Ops};

/// Where the tensors of a model come from, by full checkpoint name.
pub(crate) type Weights<'a> = dyn Fn(&str) -> Option<MappedTensor> + 'a;

/// Loads the parts of one layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerLoader<'a> {
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) config: &'a ModelConfig,
    pub(crate) layer: usize,
    pub(crate) ops: Ops,
    pub(crate) numerics: Numerics,
    /// Of activations of prompts in linear layers, where `numerics` lets them be rounded.
    pub(crate) precision: Precision,
}

impl LayerLoader<'_> {
    fn find(&self, leaf: &str) -> Result<(String, MappedTensor), Error> {
        let name = format!("{}{}.{leaf}", self.config.family.layer_prefix, self.layer);
        match (self.weights)(&name) {
            Some(tensor) => Ok((name, tensor)),
            None => Err(Error::MissingTensor { name }),
        }
    }

    /// The norm `leaf.weight` over `width` values.
    pub(crate) fn norm(&self, leaf: &str, width: usize) -> Result<RmsNorm, Error> {
        let (name, tensor) = self.find(&format!("{leaf}.weight"))?;
        let weight = vector(&name, &tensor, width)?;
        Ok(RmsNorm::new(weight, self.config.rms_norm_eps, self.ops))
    }

    /// The linear layer `leaf`, `[outputs, inputs]`, with a bias if it is to have one.
    pub(crate) fn linear(
        &self,
        leaf: &str,
        (outputs, inputs): (usize, usize),
        bias: bool,
    ) -> Result<Linear, Error> {
        self.linear_rows(leaf, (outputs, inputs), 0..outputs, bias)
    }

    /// `rows` of the linear layer `leaf`, which is `[outputs, inputs]` as a whole.
    pub(crate) fn linear_rows(
        &self,
        leaf: &str,
        (outputs, inputs): (usize, usize),
        rows: Range<usize>,
        bias: bool,
    ) -> Result<Linear, Error> {
        let (name, matrix) = self.matrix(leaf, inputs)?;
        if matrix.rows() != outputs {
            let (expected, found) = (outputs, matrix.rows());
            return Err(Error::WrongRows { name, expected, found });
        }
        let bias = match bias {
            true => {
                let (name, tensor) = self.find(&format!("{leaf}.bias"))?;
                Some(vector(&name, &tensor, outputs)?[rows.clone()].to_vec())
            }
            false => None,
        };
        let arithmetic = (self.ops, self.numerics, self.precision);
        Linear::new(Arc::new(matrix), rows, bias, arithmetic)
    }

    /// The matrix of the module `leaf`: packed if it has scales.
    fn matrix(&self, leaf: &str, columns: usize) -> Result<(String, StoredMatrix), Error> {
        let (name, weight) = self.find(&format!("{leaf}.weight"))?;
        let packed = match self.find(&format!("{leaf}.scales")) {
            Err(_) => None,
            Ok((_, scales)) => {
                let (_, biases) = self.find(&format!("{leaf}.biases"))?;
                let format = packed_format(&name, &weight, &scales, columns)?;
                Some(MappedPacked { scales, biases, format })
            }
        };
        let matrix = StoredMatrix::new(&name, MappedMatrix { weight, packed }, columns)?;
        Ok((name, matrix))
    }
}

/// How a matrix is packed, from the widths of its codes and of its scales.
fn packed_format(
    name: &str,
    weight: &MappedTensor,
    scales: &MappedTensor,
    columns: usize,
) -> Result<Affine, Error> {
    let width = |tensor: &MappedTensor| tensor.shape().get(1).copied().unwrap_or(0);
    let (words, groups, columns) = (width(weight), width(scales), columns as u64);
    let bits = words.checked_mul(32).and_then(|bits| bits.checked_div(columns));
    let format = bits.zip(columns.checked_div(groups));
    format.and_then(|(bits, group)| Affine::new(bits, group)).ok_or_else(|| Error::UnknownPacking {
        name: name.to_owned(),
        words,
        groups,
        columns,
    })
}

/// A vector of `width` values, widened.
pub(crate) fn vector(name: &str, tensor: &MappedTensor, width: usize) -> Result<Vec<f32>, Error> {
    check_shape(name, tensor, &[width as u64])?;
    Ok(float_type(name, tensor)?.widen(tensor.bytes()))
}
