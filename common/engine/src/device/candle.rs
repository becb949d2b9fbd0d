//! Candle as a device: its own operations, on weights that stay as they are stored (`candle/weight.rs`). On the processor
//! this is slow and readable, the reference that our kernels are tested against (what is recurrent it has no operations
//! for: that is computed as `recurrent.rs` says it); on a GPU (`cuda`, `metal`) it is the way to compute at all.

mod attention;
mod blocks;
mod numbers;
mod weight;

use std::ops::Range;

use cake_checkpoint::{Activation, ClampedGate, NormKind, RotaryPairs};
use candle_core::{D, Result, Tensor};

use self::numbers::Numbers;
use self::weight::Weight;
use super::recurrent::{Convolution, Recurrence, Recurring, States, softplus_plainly};
use super::{Attending, Device, DeviceScratch, StoredLinear, StoredNorm, Xielu, candle_scratch};
use crate::batch::RowKinds;
use crate::error::Error;
use crate::options::EngineOptions;
use crate::rope::Rotation;
use crate::step::Step;

/// One of candle's devices.
pub(crate) struct Candle(candle_core::Device);

/// A norm.
pub(crate) struct Norm {
    weight: Tensor,
    /// What is added, or nothing.
    bias: Option<Tensor>,
    kind: NormKind,
    eps: f32,
}

/// Keys and values of one layer, each `[blocks × block_positions, kv_heads × head_dim]`.
pub(crate) struct Kept {
    keys: Numbers,
    /// `None` where keys are the values, too.
    values: Option<Numbers>,
    block_positions: usize,
}

impl Candle {
    /// The processor.
    pub(crate) fn on_cpu() -> Candle {
        Candle(candle_core::Device::Cpu)
    }

    /// The first GPU that CUDA knows.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda() -> std::result::Result<Candle, Error> {
        Ok(Candle(candle_core::Device::new_cuda(0).map_err(failed)?))
    }

    /// The first GPU that Metal knows.
    #[cfg(feature = "metal")]
    pub(crate) fn on_metal() -> std::result::Result<Candle, Error> {
        Ok(Candle(candle_core::Device::new_metal(0).map_err(failed)?))
    }

    /// Why so many bytes are not there. Where candle takes the system's memory it asks in a way that ends the process if
    /// there is no such memory; a GPU's is refused by an error.
    fn refuses(&self, bytes: usize) -> Option<std::io::Error> {
        let asked = || Vec::<u8>::new().try_reserve_exact(bytes);
        let refused = if self.0.is_cpu() { asked().err() } else { None };
        refused.map(|_| std::io::ErrorKind::OutOfMemory.into())
    }

    fn matrix(&self, values: Vec<f32>, rows: usize, width: usize) -> Result<Tensor> {
        Tensor::from_vec(values, (rows, width), &self.0)
    }

    fn indices(&self, rows: impl Iterator<Item = usize>) -> Result<Tensor> {
        let rows: Vec<u32> = rows.map(|row| row as u32).collect(); // Bounded by what a tensor may have.
        Tensor::new(rows, &self.0)
    }

    fn turned(
        &self,
        x: &Tensor,
        rotation: &Rotation,
        heads: usize,
        head_dim: usize,
    ) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let Rotation { cos, sin, half, pairs } = rotation;
        let cos = self.matrix(cos.clone(), rows, *half)?;
        let sin = self.matrix(sin.clone(), rows, *half)?;
        let by_head = x.reshape((1, rows, heads, head_dim))?.transpose(1, 2)?; // [1, heads, rows, head_dim]
        let turning = by_head.narrow(3, 0, 2 * half)?.contiguous()?;
        let turned = match pairs {
            RotaryPairs::Halves => candle_nn::rotary_emb::rope(&turning, &cos, &sin)?,
            RotaryPairs::Neighbours => candle_nn::rotary_emb::rope_i(&turning, &cos, &sin)?,
        };
        let rest = by_head.narrow(3, 2 * half, head_dim - 2 * half)?;
        Tensor::cat(&[&turned, &rest.contiguous()?], 3)?
            .transpose(1, 2)?
            .reshape((rows, heads * head_dim))
    }
}

fn activated(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Silu => x.silu(),
        Activation::GeluTanh => x.gelu(),
        Activation::Relu2 => x.relu()?.sqr(),
        Activation::Sigmoid => candle_nn::ops::sigmoid(x),
        Activation::Xielu => unreachable!("it has numbers of its own"),
    }
}

/// An operation of candle's that failed.
fn failed(error: candle_core::Error) -> Error {
    Error::Device(Box::new(error))
}

impl Device for Candle {
    type Rows = Tensor;
    type Weight = Weight;
    type Norm = Norm;
    type Kept = Kept;
    type State = States;

    fn scratch() -> DeviceScratch {
        candle_scratch::SCRATCH
    }

    fn compute<R>(&self, _: u64, work: impl FnOnce() -> R) -> R {
        work()
    }

    fn rows(&self, values: Vec<f32>, width: usize) -> std::result::Result<Tensor, Error> {
        let rows = values.len() / width.max(1);
        self.matrix(values, rows, width).map_err(failed)
    }

    fn values(&self, rows: Tensor) -> std::result::Result<Vec<f32>, Error> {
        rows.flatten_all().and_then(|all| all.to_vec1()).map_err(failed)
    }

    fn weight(&self, linear: StoredLinear) -> std::result::Result<Weight, Error> {
        let made = match self.0.is_cpu() {
            true => Weight::mapped(linear, &self.0),
            false => Weight::brought(linear, &self.0),
        };
        made.map_err(failed)
    }

    fn linear<const N: usize>(
        &self,
        weights: [&Weight; N],
        x: &Tensor,
        _: &RowKinds,
    ) -> std::result::Result<[Tensor; N], Error> {
        let products = weights.into_iter().map(|weight| weight.product(x));
        let products = products.collect::<Result<Vec<_>>>().map_err(failed)?;
        Ok(products.try_into().expect("a product for each weight"))
    }

    fn norm_weight(&self, norm: StoredNorm) -> std::result::Result<Norm, Error> {
        let StoredNorm { weight, bias, kind, eps } = norm;
        let width = weight.len();
        let tensor = |values| Tensor::from_vec(values, width, &self.0).map_err(failed);
        Ok(Norm { weight: tensor(weight)?, bias: bias.map(tensor).transpose()?, kind, eps })
    }

    fn norm(&self, norm: &Norm, x: &Tensor) -> std::result::Result<Tensor, Error> {
        let normed = || {
            let rows = x.reshape(((), norm.weight.elem_count()))?;
            let normed = match norm.kind {
                NormKind::Rms => candle_nn::ops::rms_norm(&rows, &norm.weight, norm.eps)?,
                NormKind::Layer => {
                    let zeros = norm.weight.zeros_like()?;
                    candle_nn::ops::layer_norm(&rows, &norm.weight, &zeros, norm.eps)?
                }
            };
            let normed = match &norm.bias {
                None => normed,
                Some(bias) => normed.broadcast_add(bias)?,
            };
            normed.reshape(x.shape())
        };
        normed().map_err(failed)
    }

    fn rotate(
        &self,
        x: Tensor,
        rotation: &Rotation,
        heads: usize,
        head_dim: usize,
    ) -> std::result::Result<Tensor, Error> {
        self.turned(&x, rotation, heads, head_dim).map_err(failed)
    }

    fn kept(&self, spec: &Attending, options: &EngineOptions) -> std::result::Result<Kept, Error> {
        let EngineOptions { kv, kv_blocks: blocks, block_positions, .. } = *options;
        let (heads, head_dim) = (spec.kv_heads, spec.head_dim);
        let positions = blocks.checked_mul(block_positions);
        let all = positions.and_then(|positions| {
            let bytes = positions.checked_mul(heads * kv.head_bytes(head_dim))?;
            isize::try_from(bytes).ok()?;
            Some((positions, bytes))
        });
        let (positions, bytes) = all.ok_or(Error::KvTooLarge { blocks, block_positions })?;
        let refused = |source| Error::KvMemory { bytes: bytes as u64, source };
        let zeros = || {
            if let Some(error) = self.refuses(bytes) {
                return Err(refused(error));
            }
            let zeros = Numbers::zeros(kv, positions, (heads, head_dim), &self.0);
            zeros.map_err(|error| refused(std::io::Error::other(error)))
        };
        let values = (!spec.keys_alone).then(zeros).transpose()?;
        Ok(Kept { keys: zeros()?, values, block_positions })
    }

    fn keep(
        &self,
        kept: &mut Kept,
        step: &Step<'_>,
        keys: &Tensor,
        values: Option<&Tensor>,
    ) -> std::result::Result<(), Error> {
        self.written(kept, &step.rows, keys, values).map_err(failed)
    }

    fn attend(
        &self,
        kept: &Kept,
        spec: &Attending,
        step: &Step<'_>,
        queries: &Tensor,
        sinks: Option<&[f32]>,
    ) -> std::result::Result<Tensor, Error> {
        self.attended(kept, spec, step, queries, sinks).map_err(failed)
    }

    fn convolution_state(
        &self,
        convolution: &Convolution,
        options: &EngineOptions,
    ) -> std::result::Result<States, Error> {
        convolution.states(options)
    }

    fn convolve(
        &self,
        convolution: &Convolution,
        state: &mut States,
        step: &Step<'_>,
        x: &Tensor,
    ) -> std::result::Result<Tensor, Error> {
        let found = convolution.plainly(state, step.items, &self.values(x.clone())?);
        self.rows(found, convolution.channels)
    }

    fn recurrence_state(
        &self,
        recurrence: &Recurrence,
        options: &EngineOptions,
    ) -> std::result::Result<States, Error> {
        recurrence.states(options)
    }

    fn recur(
        &self,
        recurrence: &Recurrence,
        state: &mut States,
        step: &Step<'_>,
        of: Recurring<'_, Tensor>,
    ) -> std::result::Result<Tensor, Error> {
        let there = |x: &Tensor| self.values(x.clone());
        let (keys, queries, values) = (there(of.keys)?, there(of.queries)?, there(of.values)?);
        let (steps, weights) = (there(of.steps)?, there(of.weights)?);
        let of = Recurring {
            keys: &keys[..],
            queries: &queries,
            values: &values,
            steps: &steps,
            weights: &weights,
        };
        let found = recurrence.plainly(state, step.items, of);
        self.rows(found, recurrence.heads * recurrence.value_dim)
    }

    fn softplus(&self, x: Tensor, bias: &[f32]) -> std::result::Result<Tensor, Error> {
        let mut values = self.values(x)?;
        softplus_plainly(&mut values, bias);
        self.rows(values, bias.len())
    }

    fn spread(&self, x: Tensor, times: usize) -> std::result::Result<Tensor, Error> {
        let spread = || {
            let (rows, width) = x.dims2()?;
            x.reshape((rows, width, 1))?
                .broadcast_as((rows, width, times))?
                .contiguous()?
                .reshape((rows, width * times))
        };
        spread().map_err(failed)
    }

    fn xielu(&self, of: &Xielu, x: Tensor) -> std::result::Result<Tensor, Error> {
        let made = || {
            let [positive, negative, beta] = [of.positive, of.negative, of.beta].map(f64::from);
            let (above, below) = (x.relu()?, x.minimum(0.0)?);
            let power = (below.minimum(f64::from(of.eps))?.exp()? - 1.0)?;
            let below = ((power - below)? * negative)?;
            ((above.sqr()? * positive)? + below)? + (&x * beta)?
        };
        made().map_err(failed)
    }

    fn multiply(&self, a: Tensor, b: &Tensor) -> std::result::Result<Tensor, Error> {
        (a * b).map_err(failed)
    }

    fn gate(
        &self,
        activation: Activation,
        gate: Tensor,
        up: Tensor,
    ) -> std::result::Result<Tensor, Error> {
        activated(activation, &gate).and_then(|gate| gate * up).map_err(failed)
    }

    fn clamped(
        &self,
        ClampedGate { alpha, limit }: ClampedGate,
        gate: Tensor,
        up: Tensor,
    ) -> std::result::Result<Tensor, Error> {
        let (alpha, limit) = (f64::from(alpha), f64::from(limit));
        let made = || {
            let gate = gate.minimum(limit)?;
            let up = (up.minimum(limit)?.maximum(-limit)? + 1.0)?;
            let open = candle_nn::ops::sigmoid(&(&gate * alpha)?)?;
            (gate * open)? * up
        };
        made().map_err(failed)
    }

    fn activate(&self, activation: Activation, x: Tensor) -> std::result::Result<Tensor, Error> {
        activated(activation, &x).map_err(failed)
    }

    fn scale(&self, x: Tensor, factor: f32) -> std::result::Result<Tensor, Error> {
        (x * f64::from(factor)).map_err(failed)
    }

    fn scale_rows(&self, x: Tensor, factors: &[f32]) -> std::result::Result<Tensor, Error> {
        let scaled = || x.broadcast_mul(&self.matrix(factors.to_vec(), factors.len(), 1)?);
        scaled().map_err(failed)
    }

    fn scale_columns(&self, x: Tensor, factors: &[f32]) -> std::result::Result<Tensor, Error> {
        let scaled = || x.broadcast_mul(&self.matrix(factors.to_vec(), 1, factors.len())?);
        scaled().map_err(failed)
    }

    fn above(&self, x: Tensor, deviations: f32) -> std::result::Result<Tensor, Error> {
        let above = || {
            let centred = x.broadcast_sub(&x.mean_keepdim(1)?)?;
            let deviation = centred.sqr()?.mean_keepdim(1)?.sqrt()?;
            centred.broadcast_sub(&(deviation * f64::from(deviations))?)?.relu()
        };
        above().map_err(failed)
    }

    fn add(&self, a: Tensor, b: Tensor) -> std::result::Result<Tensor, Error> {
        (a + b).map_err(failed)
    }

    fn columns(
        &self,
        x: &Tensor,
        period: usize,
        columns: Range<usize>,
    ) -> std::result::Result<Tensor, Error> {
        let found = || {
            let rows = x.dim(0)?;
            let pieces = x.reshape((rows, (), period))?;
            pieces.narrow(2, columns.start, columns.len())?.contiguous()?.reshape((rows, ()))
        };
        found().map_err(failed)
    }

    fn join(&self, parts: &[(&Tensor, usize)]) -> std::result::Result<Tensor, Error> {
        let joined = || {
            let piece = |(part, each): &(&Tensor, usize)| part.reshape((part.dim(0)?, (), *each));
            let pieces = parts.iter().map(piece).collect::<Result<Vec<_>>>()?;
            let joined = Tensor::cat(&pieces, 2)?;
            joined.reshape((joined.dim(0)?, ()))
        };
        joined().map_err(failed)
    }

    fn softmax(&self, x: Tensor) -> std::result::Result<Vec<f32>, Error> {
        let softmax = candle_nn::ops::softmax(&x, D::Minus1).map_err(failed)?;
        self.values(softmax)
    }

    fn gather(&self, x: &Tensor, rows: &[usize]) -> std::result::Result<Tensor, Error> {
        let gathered = || x.index_select(&self.indices(rows.iter().copied())?, 0);
        gathered().map_err(failed)
    }

    fn zeros_like(&self, x: &Tensor) -> std::result::Result<Tensor, Error> {
        x.zeros_like().map_err(failed)
    }

    fn scatter_add(
        &self,
        sums: &mut Tensor,
        rows: &[usize],
        weights: &[f32],
        x: &Tensor,
    ) -> std::result::Result<(), Error> {
        let added = || {
            let weights = self.matrix(weights.to_vec(), weights.len(), 1)?;
            sums.index_add(&self.indices(rows.iter().copied())?, &x.broadcast_mul(&weights)?, 0)
        };
        *sums = added().map_err(failed)?;
        Ok(())
    }
}
