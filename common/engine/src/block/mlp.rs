//! The gated feed-forward network of a layer.

use cake_checkpoint::{Activation, MlpSpec};

use crate::batch::RowKinds;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// `down(activation(gate(x)) · up(x))`.
pub(crate) struct Mlp<D: Device> {
    gate_proj: D::Weight,
    up_proj: D::Weight,
    down_proj: D::Weight,
    activation: Activation,
}

impl<D: Device> Mlp<D> {
    /// Loads the projections. Their activations may be rounded to half as many bits as attention's: no score magnifies
    /// the loss, and most of a prompt's time is spent here. The gate's packed weights keep their bits, since the gate's
    /// product goes through an exponential.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &MlpSpec) -> Result<Self, Error> {
        let [gate, up] = spec.gate_up();
        let mut gate_proj = loader.linear(&gate, Precision::Bf16)?;
        let up_proj = loader.linear(&up, Precision::Bf16Both)?;
        let down_proj = loader.linear(&spec.down(), Precision::Bf16Both)?;
        loader.device.precede(&mut gate_proj, &[&down_proj]);
        Ok(Mlp { gate_proj, up_proj, down_proj, activation: spec.activation })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 2] {
        [&self.gate_proj, &self.up_proj]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.down_proj, later);
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result.
    pub(crate) fn forward(
        &self,
        device: &D,
        hidden: &D::Rows,
        kinds: &RowKinds,
    ) -> Result<D::Rows, Error> {
        let [gate, up] = device.linear(self.first(), hidden, kinds)?; // [rows, inner_size]
        let product = device.gate(self.activation, gate, up)?;
        let [output] = device.linear([&self.down_proj], &product, kinds)?;
        Ok(output)
    }
}
