//! The selective state space of one decoder layer.

use cake_checkpoint::{Activation, LinearSpec, MambaSpec, NormSpec};

use crate::batch::RowKinds;
use crate::device::{Convolution, Device, Recurrence, Recurring, StoredNorm};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// Mamba 2 (arXiv:2405.21060), following `NemotronHMamba2Mixer`, `GraniteMoeHybridMambaLayer` and `FalconH1Mixer` in Hugging
/// Face transformers.
pub(crate) struct Mamba<D: Device> {
    /// Gates, what the convolution takes, and steps.
    inputs: [D::Weight; 3],
    convolution: Convolution,
    past: D::State,
    /// What is added to steps.
    bias: Vec<f32>,
    recurrence: Recurrence,
    matrices: D::State,
    /// Of each part that is normalised by itself; none if there is no norm.
    norms: Vec<D::Norm>,
    output: D::Weight,
    spec: MambaSpec,
}

impl<D: Device> Mamba<D> {
    /// Loads the projections. Their activations keep two bf16 of each number: what is lost is not forgotten.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &MambaSpec) -> Result<Self, Error> {
        let linear = |spec: &LinearSpec| loader.linear(spec, Precision::Bf16x2);
        let [gate, convolved, steps] = spec.inputs();
        let convolution = loader.convolution(&spec.convolution)?;
        let rates = loader.parameter(&spec.rate())?;
        let recurrence = Recurrence {
            heads: spec.heads,
            key_heads: spec.groups,
            keys_in_turn: false,
            key_dim: spec.state_dim,
            value_dim: spec.head_dim,
            // In f64, as C libraries round e^x in f32 each in its own way.
            rates: rates.into_iter().map(|rate| f64::from(rate).exp() as f32).collect(),
            steps_by_key: false,
            corrects: false,
            skips: Some(loader.parameter(&spec.skip())?),
        };
        let norms = spec.norm.iter().map(|norm| Self::norms(loader, norm, spec.norm_groups));
        let norms = norms.collect::<Result<Vec<_>, Error>>()?;
        Ok(Mamba {
            inputs: [linear(&gate)?, linear(&convolved)?, linear(&steps)?],
            past: loader.device.convolution_state(&convolution, loader.options)?,
            convolution,
            bias: loader.parameter(&spec.bias())?,
            matrices: loader.device.recurrence_state(&recurrence, loader.options)?,
            recurrence,
            norms: norms.into_iter().flatten().collect(),
            output: linear(&spec.output())?,
            spec: spec.clone(),
        })
    }

    /// A norm for each of so many parts of what the stored one is for.
    fn norms(
        loader: &LayerLoader<'_, D>,
        norm: &NormSpec,
        parts: usize,
    ) -> Result<Vec<D::Norm>, Error> {
        let weight = loader.norm_values(norm)?;
        let of_part = |weight: &[f32]| {
            let (weight, bias, eps) = (weight.to_vec(), None, norm.eps as f32);
            loader.device.norm_weight(StoredNorm { weight, bias, kind: norm.kind, eps })
        };
        weight.chunks((weight.len() / parts).max(1)).map(of_part).collect()
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 2] {
        let [gate, convolved, _] = &self.inputs;
        [gate, convolved]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.output, later);
    }

    /// The operation on `hidden`, `[rows, hidden_size]`, which is already normalised; the result has the same shape.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
    ) -> Result<D::Rows, Error> {
        let [mut gate, mut convolved] = device.linear(self.first(), hidden, &step.kinds)?;
        // Steps go through two exponentials: no row is rounded as a prompt's.
        let unrounded = RowKinds::generated(step.kinds.rows());
        let [mut steps] = device.linear([&self.inputs[2]], hidden, &unrounded)?;
        let (inner, groups) = (self.spec.inner_dim(), self.spec.groups_dim());
        let width = inner + 2 * groups;
        let split = |all: &D::Rows| {
            let part = |columns| device.columns(all, width, columns);
            let ends = [inner, inner + groups];
            Ok::<_, Error>([part(0..ends[0])?, part(ends[0]..ends[1])?, part(ends[1]..width)?])
        };
        if let Some([for_gate, of_values, of_keys, of_queries, for_steps]) = self.spec.multipliers {
            gate = device.scale(gate, for_gate)?;
            steps = device.scale(steps, for_steps)?;
            let [x, b, c] = split(&convolved)?;
            let x = device.scale(x, of_values)?;
            let (b, c) = (device.scale(b, of_keys)?, device.scale(c, of_queries)?);
            convolved = device.join(&[(&x, inner), (&b, groups), (&c, groups)])?;
        }
        convolved = device.convolve(&self.convolution, &mut self.past, step, &convolved)?;
        convolved = device.activate(Activation::Silu, convolved)?;
        let [values, keys, queries] = split(&convolved)?;
        drop(convolved);
        let steps = device.softplus(steps, &self.bias)?;
        let of = Recurring {
            keys: &keys,
            queries: &queries,
            values: &values,
            steps: &steps,
            weights: &steps,
        };
        let read = device.recur(&self.recurrence, &mut self.matrices, step, of)?;
        drop((values, keys, queries, steps));
        let gated = match self.spec.norm_before_gate {
            true => device.gate(Activation::Silu, gate, self.normed(device, read)?)?,
            false => self.normed(device, device.gate(Activation::Silu, gate, read)?)?,
        };
        let [output] = device.linear([&self.output], &gated, &step.kinds)?;
        Ok(output)
    }

    /// `x`, `[rows, heads × head_dim]`, each part normalised by itself.
    fn normed(&self, device: &D, x: D::Rows) -> Result<D::Rows, Error> {
        match &self.norms[..] {
            [] => return Ok(x),
            [one] => return device.norm(one, &x),
            _ => {}
        }
        let (inner, each) = (self.spec.inner_dim(), self.spec.inner_dim() / self.norms.len());
        let part = |(index, norm)| {
            let part = device.columns(&x, inner, index * each..(index + 1) * each)?;
            device.norm(norm, &part)
        };
        let parts = self.norms.iter().enumerate().map(part).collect::<Result<Vec<_>, Error>>()?;
        device.join(&parts.iter().map(|part| (part, each)).collect::<Vec<_>>())
    }
}
