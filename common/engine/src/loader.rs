//! Finding the weights of a layer by name and checking that they are what the configuration says.

use std::sync::Arc;

use cake_checkpoint::{
    Affine, LinearSpec, MappedMatrix, MappedPacked, MappedTensor, ModelSpec, NormSpec,
};

use crate::block::RmsNorm;
use crate::device::cpu::gemm::precision::Precision;
use crate::error::Error;
use crate::linear::Linear;
use crate::matrix::{StoredMatrix, vector};
use crate::options::EngineOptions;

/// Where the tensors of a model come from, by full checkpoint name.
pub(crate) type Weights<'a> = dyn Fn(&str) -> Option<MappedTensor> + 'a;

/// Loads the parts of one layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerLoader<'a> {
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) model: &'a ModelSpec,
    pub(crate) layer: usize,
    pub(crate) options: &'a EngineOptions,
}

impl LayerLoader<'_> {
    fn find(&self, leaf: &str) -> Result<(String, MappedTensor), Error> {
        let name = self.model.layer_tensor_name(self.layer, leaf);
        match (self.weights)(&name) {
            Some(tensor) => Ok((name, tensor)),
            None => Err(Error::MissingTensor { name }),
        }
    }

    /// A norm.
    pub(crate) fn norm(&self, norm: &NormSpec) -> Result<RmsNorm, Error> {
        let (name, tensor) = self.find(&format!("{}.weight", norm.path))?;
        RmsNorm::load(&name, &tensor, norm, self.options.ops)
    }

    /// A linear layer. Activations of prompts are rounded to `precision`, where numerics let them be.
    pub(crate) fn linear(
        &self,
        linear: &LinearSpec,
        precision: Precision,
    ) -> Result<Linear, Error> {
        let (name, matrix) = self.matrix(&linear.path, linear.inputs)?;
        if matrix.rows() != linear.stored_rows {
            let (expected, found) = (linear.stored_rows, matrix.rows());
            return Err(Error::WrongRows { name, expected, found });
        }
        let bias = match linear.bias {
            true => {
                let (name, tensor) = self.find(&format!("{}.bias", linear.path))?;
                let all = vector(&name, &tensor, linear.stored_rows)?;
                Some(all[linear.rows.clone()].to_vec())
            }
            false => None,
        };
        let arithmetic = (self.options.ops, self.options.numerics, precision);
        Linear::new(Arc::new(matrix), linear.rows.clone(), bias, arithmetic)
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
