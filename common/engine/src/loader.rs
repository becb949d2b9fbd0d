//! Finding the weights of a layer by name and checking that they are what the configuration says.

use std::ops::Range;

use cake_checkpoint::{MappedTensor, ModelConfig};

use crate::error::Error;
use crate::linear::{Linear, float_type};
use crate::norm::RmsNorm;
use crate::options::Ops;

/// Where the tensors of a model come from, by full checkpoint name.
pub(crate) type Weights<'a> = dyn Fn(&str) -> Option<MappedTensor> + 'a;

/// Loads the parts of one layer.
pub(crate) struct LayerLoader<'a> {
    pub(crate) weights: &'a Weights<'a>,
    pub(crate) config: &'a ModelConfig,
    pub(crate) layer: usize,
    pub(crate) ops: Ops,
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
        let (name, tensor) = self.find(&format!("{leaf}.weight"))?;
        check_shape(&name, &tensor, &[outputs, inputs])?;
        let bias = match bias {
            true => {
                let (name, tensor) = self.find(&format!("{leaf}.bias"))?;
                Some(vector(&name, &tensor, outputs)?[rows.clone()].to_vec())
            }
            false => None,
        };
        Linear::new(&name, tensor, rows, inputs, bias, self.ops)
    }
}

/// A vector of `width` values, widened.
pub(crate) fn vector(name: &str, tensor: &MappedTensor, width: usize) -> Result<Vec<f32>, Error> {
    check_shape(name, tensor, &[width])?;
    Ok(float_type(name, tensor)?.widen(tensor.bytes()))
}

fn check_shape(name: &str, tensor: &MappedTensor, expected: &[usize]) -> Result<(), Error> {
    let expected: Vec<u64> = expected.iter().map(|&axis| axis as u64).collect();
    if tensor.shape() == expected {
        return Ok(());
    }
    let found = tensor.shape().to_vec();
    Err(Error::WrongShape { name: name.to_owned(), expected, found })
}
