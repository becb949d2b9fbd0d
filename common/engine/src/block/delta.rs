//! The gated delta rule of one decoder layer.

use cake_checkpoint::{Activation, DeltaInputs, DeltaSpec, LinearSpec};

use crate::batch::RowKinds;
use crate::device::{Convolution, Device, Recurrence, Recurring, StoredNorm};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// Added to the sum of a query's or key's squares before it is divided by its root.
const LENGTH_EPS: f64 = 1e-6;

/// Gated delta rule (arXiv:2412.06464), following `Qwen3NextGatedDeltaNet` and `Qwen3_5GatedDeltaNet` in Hugging Face
/// transformers; and that of Kimi Linear (arXiv:2510.26692), where each number of a key is forgotten by itself.
pub(crate) struct Delta<D: Device> {
    /// In the order of [`DeltaSpec::inputs`].
    inputs: Vec<D::Weight>,
    /// Of queries, keys and values, or one of all of them, each with what it keeps.
    convolutions: Vec<(Convolution, D::State)>,
    /// What makes queries and keys as long as they are to be.
    lengths: [D::Norm; 2],
    /// What is added to how much is forgotten.
    bias: Vec<f32>,
    recurrence: Recurrence,
    matrices: D::State,
    norm: D::Norm,
    output: D::Weight,
    spec: DeltaSpec,
}

/// What a row is, before the convolutions.
struct Parts<R> {
    /// Queries, keys and values, as the convolutions take them.
    qkv: Vec<R>,
    gate: R,
    correction: R,
    decay: R,
}

impl<D: Device> Delta<D> {
    /// Loads the projections. Their activations keep two bf16 of each number: what is lost is not forgotten.
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &DeltaSpec) -> Result<Self, Error> {
        let linear = |spec: &LinearSpec| loader.linear(spec, Precision::Bf16x2);
        let device = loader.device;
        let inputs = spec.inputs().iter().map(linear).collect::<Result<Vec<_>, Error>>()?;
        let convolution = |spec| {
            let convolution = loader.convolution(spec)?;
            let state = device.convolution_state(&convolution, loader.options)?;
            Ok((convolution, state))
        };
        // x / √(Σ x² + eps) is √width shorter than a norm makes it; of queries once more.
        let width = spec.key_dim as f64;
        let length = |scale: f64| {
            let weight = vec![(scale / width.sqrt()) as f32; spec.key_dim];
            device.norm_weight(StoredNorm::rms(weight, (LENGTH_EPS / width) as f32))
        };
        let rates = loader.parameter(&spec.rate())?;
        let rate = |said: f32| match spec.negative_rate {
            // In f64, as C libraries round e^x in f32 each in its own way.
            false => f64::from(said).exp() as f32,
            true => -said,
        };
        let recurrence = Recurrence {
            heads: spec.value_heads,
            key_heads: spec.key_heads,
            keys_in_turn: spec.keys_in_turn,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
            rates: rates.into_iter().map(rate).collect(),
            steps_by_key: spec.decays() != spec.value_heads,
            corrects: true,
            skips: None,
        };
        Ok(Delta {
            inputs,
            convolutions: spec
                .convolutions
                .iter()
                .map(convolution)
                .collect::<Result<_, Error>>()?,
            lengths: [length(1.0 / width.sqrt())?, length(1.0)?],
            bias: loader.parameter(&spec.bias())?,
            matrices: device.recurrence_state(&recurrence, loader.options)?,
            recurrence,
            norm: loader.norm(&spec.norm)?,
            output: linear(&spec.output())?,
            spec: spec.clone(),
        })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> Vec<&D::Weight> {
        self.inputs.iter().take(1).collect()
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
        let Parts { qkv, gate, correction, decay } = self.parts(device, hidden, step)?;
        let mut convolved = Vec::with_capacity(qkv.len());
        for ((convolution, state), x) in self.convolutions.iter_mut().zip(qkv) {
            let x = device.convolve(convolution, state, step, &x)?;
            convolved.push(device.activate(Activation::Silu, x)?);
        }
        let [mut q, mut k, v] = self.split(device, convolved)?;
        let [for_queries, for_keys] = &self.lengths;
        q = device.norm(for_queries, &q)?;
        k = device.norm(for_keys, &k)?;
        let steps = device.softplus(decay, &self.bias)?;
        let weights = device.activate(Activation::Sigmoid, correction)?;
        let of = Recurring { keys: &k, queries: &q, values: &v, steps: &steps, weights: &weights };
        let read = device.recur(&self.recurrence, &mut self.matrices, step, of)?;
        drop((q, k, v, steps, weights));
        let normed = device.norm(&self.norm, &read)?; // [rows, value_heads × value_dim]
        drop(read);
        let gated = device.gate(self.spec.gate, gate, normed)?;
        let [output] = device.linear([&self.output], &gated, &step.kinds)?;
        Ok(output)
    }

    /// The products with the input.
    fn parts(
        &self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
    ) -> Result<Parts<D::Rows>, Error> {
        // How much is forgotten goes through two exponentials: no row is rounded as a prompt's.
        let unrounded = RowKinds::generated(step.kinds.rows());
        let spec = &self.spec;
        let (keys, values) = (spec.key_dim, spec.group() * spec.value_dim);
        match (&spec.inputs, &self.inputs[..]) {
            (DeltaInputs::Joined { .. }, [qkv, gate, correction, decay]) => {
                let [qkv, gate] = device.linear([qkv, gate], hidden, &step.kinds)?;
                let [correction, decay] = device.linear([correction, decay], hidden, &unrounded)?;
                Ok(Parts { qkv: vec![qkv], gate, correction, decay })
            }
            (DeltaInputs::ByHead { .. }, [all, both]) => {
                let [all] = device.linear([all], hidden, &step.kinds)?;
                let width = 2 * keys + 2 * values; // Of a head of keys.
                let part = |start, len| device.columns(&all, width, start..start + len);
                let (q, k, v) = (part(0, keys)?, part(keys, keys)?, part(2 * keys, values)?);
                let gate = part(2 * keys + values, values)?;
                let of_rows = [spec.keys_dim(), spec.keys_dim(), spec.values_dim()];
                let qkv = [&q, &k, &v].into_iter().zip(of_rows).collect::<Vec<_>>();
                let qkv = vec![device.join(&qkv)?];
                let [correction, decay] = self.by_head(device, both, hidden, &unrounded)?;
                Ok(Parts { qkv, gate, correction, decay })
            }
            (DeltaInputs::RatesByHead { .. }, [qkv, gate, both]) => {
                let [qkv, gate] = device.linear([qkv, gate], hidden, &step.kinds)?;
                let [correction, decay] = self.by_head(device, both, hidden, &unrounded)?;
                Ok(Parts { qkv: vec![qkv], gate, correction, decay })
            }
            (
                DeltaInputs::Separate { .. },
                [q, k, v, correction, short_gate, short_decay, gate, decay],
            ) => {
                let [q, k, v, short] = device.linear([q, k, v, short_gate], hidden, &step.kinds)?;
                let [gate] = device.linear([gate], &short, &step.kinds)?;
                let [correction, short] =
                    device.linear([correction, short_decay], hidden, &unrounded)?;
                let [decay] = device.linear([decay], &short, &unrounded)?;
                Ok(Parts { qkv: vec![q, k, v], gate, correction, decay })
            }
            _ => unreachable!("as many projections as the inputs have"),
        }
    }

    /// How much is corrected and how much forgotten, of a matrix that has them by heads of keys.
    fn by_head(
        &self,
        device: &D,
        both: &D::Weight,
        hidden: &D::Rows,
        kinds: &RowKinds,
    ) -> Result<[D::Rows; 2], Error> {
        let [both] = device.linear([both], hidden, kinds)?;
        let group = self.spec.group();
        let part = |columns| device.columns(&both, 2 * group, columns);
        Ok([part(0..group)?, part(group..2 * group)?])
    }

    /// Queries, keys and values of what comes out of the convolutions.
    fn split(&self, device: &D, convolved: Vec<D::Rows>) -> Result<[D::Rows; 3], Error> {
        let all = match <[D::Rows; 3]>::try_from(convolved) {
            Ok(separate) => return Ok(separate),
            Err(joined) => joined,
        };
        let (keys, values) = (self.spec.keys_dim(), self.spec.values_dim());
        let width = 2 * keys + values;
        let part = |columns| device.columns(&all[0], width, columns);
        Ok([part(0..keys)?, part(keys..2 * keys)?, part(2 * keys..width)?])
    }
}
