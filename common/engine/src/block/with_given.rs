//! What a layer makes of what it is given of each row beside hidden states.

use cake_checkpoint::{Activation, WithGivenSpec};

use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// `output(activation(gate(x)) · given)`, following `Gemma4TextDecoderLayer` in Hugging Face transformers.
pub(crate) struct WithGiven<D: Device> {
    gate: D::Weight,
    output: D::Weight,
    activation: Activation,
    /// Whose part of what is given it is.
    layer: usize,
    /// Numbers of that.
    width: usize,
}

impl<D: Device> WithGiven<D> {
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &WithGivenSpec) -> Result<Self, Error> {
        let output = loader.linear(&spec.output(), Precision::Bf16x2)?;
        let mut gate = loader.linear(&spec.gate(), Precision::Bf16x2)?;
        loader.device.precede(&mut gate, &[&output]);
        let (layer, &WithGivenSpec { activation, width, .. }) =
            (loader.layer.unwrap_or_default(), spec);
        Ok(WithGiven { gate, output, activation, layer, width })
    }

    /// The first product of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 1] {
        [&self.gate]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.output, later);
    }

    /// `hidden` is `[rows, hidden_size]`, and so is the result.
    pub(crate) fn forward(
        &self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
    ) -> Result<D::Rows, Error> {
        let [gate] = device.linear([&self.gate], hidden, &step.kinds)?; // [rows, width]
        let given = device.rows(step.given.of(self.layer)?, self.width)?;
        let product = device.gate(self.activation, gate, given)?;
        let [output] = device.linear([&self.output], &product, &step.kinds)?;
        Ok(output)
    }
}
