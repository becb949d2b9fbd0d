//! Finding the weights of a layer by name and checking that they are what the configuration says.

use std::sync::Arc;

use cake_checkpoint::{
    ConvolutionSpec, LinearSpec, MappedMatrix, MappedTensor, ModelSpec, NormSpec, Part, TensorSpec,
};

use crate::device::{Convolution, Device, StoredLinear, StoredNorm};
use crate::error::Error;
use crate::matrix::{StoredMatrix, numbers, vector};
use crate::options::{EngineOptions, Precision};
use crate::tally::Tallied;

/// Where the tensors of a model come from, by full checkpoint name.
pub(crate) type Weights<'a> = dyn Fn(&str) -> Option<MappedTensor> + 'a;

/// What the name of a bias ends in.
const BIAS: &str = ".bias";

/// Loads the parts of one layer, or what is outside of all layers.
pub(crate) struct LayerLoader<'a, D> {
    pub(crate) device: &'a D,
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) model: &'a ModelSpec,
    /// `None` for what is outside of layers, whose modules have whole names.
    pub(crate) layer: Option<usize>,
    pub(crate) options: &'a EngineOptions,
}

impl<D: Device> LayerLoader<'_, D> {
    /// The full name of a tensor.
    fn name(&self, leaf: &str) -> String {
        match self.layer {
            Some(layer) => self.model.layer_tensor_name(layer, leaf),
            None => leaf.to_owned(),
        }
    }

    fn find(&self, leaf: &str) -> Result<(String, MappedTensor), Error> {
        let name = self.name(leaf);
        match (self.weights)(&name) {
            Some(tensor) => Ok((name, tensor)),
            None => Err(Error::MissingTensor { name }),
        }
    }

    /// A norm.
    pub(crate) fn norm(&self, norm: &NormSpec) -> Result<D::Norm, Error> {
        let (name, tensor) = self.find(&format!("{}{}", norm.path, Part::Weight.ending()))?;
        let weight = norm_values(&name, &tensor, norm)?;
        let bias = || {
            let (name, bias) = self.find(&format!("{}{BIAS}", norm.path))?;
            vector(&name, &bias, norm.width)
        };
        let bias = norm.bias.then(bias).transpose()?;
        let (kind, eps) = (norm.kind, norm.eps as f32);
        self.device.norm_weight(StoredNorm { weight, bias, kind, eps })
    }

    /// The weight of a norm.
    pub(crate) fn norm_values(&self, norm: &NormSpec) -> Result<Vec<f32>, Error> {
        let (name, tensor) = self.find(&format!("{}.weight", norm.path))?;
        norm_values(&name, &tensor, norm)
    }

    /// The numbers of a tensor that belongs to no module.
    pub(crate) fn parameter(&self, spec: &TensorSpec) -> Result<Vec<f32>, Error> {
        let (name, tensor) = self.find(&spec.leaf())?;
        numbers(&name, &tensor, &spec.shape)
    }

    /// A convolution, its weights tap by tap.
    pub(crate) fn convolution(&self, spec: &ConvolutionSpec) -> Result<Convolution, Error> {
        let &ConvolutionSpec { channels, taps, .. } = spec;
        let by_channel = self.parameter(&spec.weight())?; // [channels, taps]
        let tap = |tap| by_channel.iter().skip(tap).step_by(taps).copied();
        let weights = (0..taps).flat_map(tap).collect();
        let bias = spec.bias().map(|bias| self.parameter(&bias)).transpose()?;
        Ok(Convolution { weights, bias, channels, taps })
    }

    /// A linear layer. Activations of prompts are rounded to `precision`, where numerics let them be.
    pub(crate) fn linear(
        &self,
        linear: &LinearSpec,
        precision: Precision,
    ) -> Result<D::Weight, Error> {
        let matrix = self.matrix(linear)?;
        let bias = match linear.bias {
            true => {
                let (name, tensor) = self.find(&format!("{}{BIAS}", linear.path))?;
                let all = vector(&name, &tensor, linear.stored_rows)?;
                Some(all[linear.rows.clone()].to_vec())
            }
            false => None,
        };
        let tallied = self.options.tally.clone().map(|tally| Tallied {
            tally,
            weight: self.name(&format!("{}{}", linear.path, Part::Weight.ending())),
        });
        let (matrix, rows, numerics) =
            (Arc::new(matrix), linear.rows.clone(), self.options.numerics);
        self.device.weight(StoredLinear { matrix, rows, bias, numerics, precision, tallied })
    }

    /// The same of the layer whose matrix has the columns of this one's rows: `y = x · weight`, without its bias.
    pub(crate) fn transposed(
        &self,
        linear: &LinearSpec,
        precision: Precision,
    ) -> Result<D::Weight, Error> {
        let matrix = self.matrix(linear)?;
        let matrix = Arc::new(matrix.transposed(linear.rows.clone())?);
        let (rows, bias, numerics) = (0..matrix.rows(), None, self.options.numerics);
        let tallied = None;
        self.device.weight(StoredLinear { matrix, rows, bias, numerics, precision, tallied })
    }

    /// The matrix of a linear layer, whose weight's tag says how it is stored.
    pub(crate) fn matrix(&self, linear: &LinearSpec) -> Result<StoredMatrix, Error> {
        let (name, weight) = self.find(&format!("{}{}", linear.path, Part::Weight.ending()))?;
        let Some(encoding) = weight.encoding() else {
            return Err(Error::NoEncoding { name });
        };
        let shape = [linear.stored_rows as u64, linear.inputs as u64];
        let Some(specs) = encoding.parts(shape) else {
            return Err(Error::NotWholeGroups { name, columns: linear.inputs, encoding });
        };
        let others = specs.iter().filter(|spec| spec.part != Part::Weight);
        let others =
            others.map(|spec| self.find(&format!("{}{}", linear.path, spec.part.ending())));
        let mut parts = vec![weight];
        for other in others {
            parts.push(other?.1);
        }
        let matrix = StoredMatrix::new(&name, MappedMatrix { encoding, parts }, linear.inputs)?;
        if matrix.rows() != linear.stored_rows {
            let (expected, found) = (linear.stored_rows, matrix.rows());
            return Err(Error::WrongRows { name, expected, found });
        }
        Ok(matrix)
    }
}

/// What values are multiplied with by such a norm.
fn norm_values(name: &str, tensor: &MappedTensor, norm: &NormSpec) -> Result<Vec<f32>, Error> {
    let mut weight = vector(name, tensor, norm.width)?;
    weight.iter_mut().for_each(|weight| *weight += norm.offset);
    Ok(weight)
}
