//! The feed-forward network of a layer.

use cake_checkpoint::{Activation, ClampedGate, MlpSpec, TensorSpec};

use crate::batch::RowKinds;
use crate::device::{Device, Xielu};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// `down(activation(gate(x)) · up(x))`, or `down(activation(up(x)))`; times `sigmoid(w · x)`, if there is such a gate.
pub(crate) struct Mlp<D: Device> {
    inner: Inner<D>,
    down_proj: D::Weight,
    activation: Activation,
    xielu: Option<Xielu>,
    gate_cutoff: Option<f32>,
    gate_multiplier: Option<f32>,
    clamped: Option<ClampedGate>,
    output_gate: Option<D::Weight>,
}

/// What goes into the last projection.
enum Inner<D: Device> {
    /// Gate and up.
    Gated([D::Weight; 2]),
    /// Up alone.
    Plain(D::Weight),
}

impl<D: Device> Mlp<D> {
    /// Loads the projections. Their activations may be rounded to half as many bits as attention's: no score magnifies
    /// the loss, and most of a prompt's time is spent here. The gate's packed weights keep their bits, since the gate's
    /// product goes through an exponential.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &MlpSpec) -> Result<Self, Error> {
        let down_proj = loader.linear(&spec.down(), Precision::Bf16Both)?;
        let inner = match &spec.gate_up()[..] {
            [gate, up] => {
                let mut gate_proj = loader.linear(gate, Precision::Bf16)?;
                loader.device.precede(&mut gate_proj, &[&down_proj]);
                Inner::Gated([gate_proj, loader.linear(up, Precision::Bf16Both)?])
            }
            [up] => {
                let mut up_proj = loader.linear(up, Precision::Bf16)?;
                loader.device.precede(&mut up_proj, &[&down_proj]);
                Inner::Plain(up_proj)
            }
            _ => unreachable!("gate and up, or up alone"),
        };
        let output_gate = spec.output_gate();
        let output_gate =
            output_gate.map(|gate| loader.linear(&gate, Precision::Bf16x2)).transpose()?;
        let &MlpSpec { activation, gate_cutoff, gate_multiplier, clamped, .. } = spec;
        let numbers = spec.activation_numbers();
        let xielu = numbers.map(|numbers| xielu(loader, &numbers)).transpose()?;
        Ok(Mlp {
            inner,
            down_proj,
            activation,
            xielu,
            gate_cutoff,
            gate_multiplier,
            clamped,
            output_gate,
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> Vec<&D::Weight> {
        match &self.inner {
            Inner::Gated(both) => both.iter().collect(),
            Inner::Plain(up) => vec![up],
        }
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
        let product = match &self.inner {
            Inner::Gated([gate, up]) => {
                let [mut gate, up] = device.linear([gate, up], hidden, kinds)?; // [rows, inner_size]
                if let Some(multiplier) = self.gate_multiplier {
                    gate = device.scale(gate, multiplier)?;
                }
                if let Some(deviations) = self.gate_cutoff {
                    gate = device.above(gate, deviations)?;
                }
                match self.clamped {
                    Some(of) => device.clamped(of, gate, up)?,
                    None => device.gate(self.activation, gate, up)?,
                }
            }
            Inner::Plain(up) => {
                let [up] = device.linear([up], hidden, kinds)?;
                match &self.xielu {
                    Some(numbers) => device.xielu(numbers, up)?,
                    None => device.activate(self.activation, up)?,
                }
            }
        };
        let [output] = device.linear([&self.down_proj], &product, kinds)?;
        let Some(gate) = &self.output_gate else { return Ok(output) };
        let [gate] = device.linear([gate], hidden, kinds)?; // [rows, 1]
        let weights = device.values(device.activate(Activation::Sigmoid, gate)?)?;
        let rows: Vec<usize> = (0..weights.len()).collect();
        let mut gated = device.zeros_like(hidden)?;
        device.scatter_add(&mut gated, &rows, &weights, &output)?;
        Ok(gated)
    }
}

/// The numbers of an activation: `p = ln(1 + e^a)`, `n = b + ln(1 + e^a)` of what is stored (`XIELUActivation` in Hugging Face
/// transformers).
fn xielu<D: Device>(
    loader: &LayerLoader<'_, D>,
    numbers: &[TensorSpec; 4],
) -> Result<Xielu, Error> {
    let mut all = Vec::with_capacity(numbers.len());
    for number in numbers {
        all.extend(loader.parameter(number)?);
    }
    let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
    match all[..] {
        [positive, negative, beta, eps] => {
            let (positive, negative) = (softplus(positive), beta + softplus(negative));
            Ok(Xielu { positive, negative, beta, eps })
        }
        _ => unreachable!("each is one number"),
    }
}
