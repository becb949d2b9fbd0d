//! How a layer goes on from several streams of hidden states.

use cake_checkpoint::{Activation, LayerStreamsSpec};

use crate::batch::RowKinds;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// Predicts streams and corrects them, following `Gemma3nTextAltUp` in Hugging Face transformers.
pub(crate) struct Streams<D: Device> {
    norm: D::Norm,
    router: D::Weight,
    prediction: D::Weight,
    correction: D::Weight,
    /// Of each number of the active one.
    scale: Vec<f32>,
    router_multiplier: f32,
    count: usize,
    active: usize,
    hidden_size: usize,
}

/// Streams, each `[rows, hidden_size]`.
pub(crate) type Parted<D> = Vec<<D as Device>::Rows>;

impl<D: Device> Streams<D> {
    pub(crate) fn load(
        loader: &LayerLoader<'_, D>,
        spec: &LayerStreamsSpec,
    ) -> Result<Self, Error> {
        let linear = |spec| loader.linear(&spec, Precision::Bf16x2);
        Ok(Streams {
            norm: loader.norm(&spec.norm)?,
            router: linear(spec.router())?,
            prediction: linear(spec.prediction())?,
            correction: linear(spec.correction())?,
            scale: loader.parameter(&spec.scale())?,
            router_multiplier: spec.router_multiplier,
            count: spec.count,
            active: spec.active,
            hidden_size: spec.norm.width,
        })
    }

    /// The streams as they are predicted, and a copy of the active one; `hidden` has all of them behind each other.
    pub(crate) fn predict(
        &self,
        device: &D,
        hidden: D::Rows,
        kinds: &RowKinds,
    ) -> Result<(Parted<D>, D::Rows), Error> {
        let (count, width) = (self.count, self.hidden_size);
        let part = |index: usize| {
            device.columns(&hidden, count * width, index * width..(index + 1) * width)
        };
        let before = (0..count).map(part).collect::<Result<Parted<D>, Error>>()?;
        drop(hidden);
        let modes = self.modes(device, &before[self.active], kinds)?;
        let [all] = device.linear([&self.prediction], &modes, kinds)?;
        let all = device.values(all)?; // [rows, count × count]
        let once = vec![1.0; kinds.rows()];
        let predict = |index: usize| {
            let mut predicted = device.zeros_like(&before[index])?;
            add_weighted(device, &mut predicted, &once, &before[index])?;
            for (other, stream) in before.iter().enumerate() {
                let weights = all.iter().skip(index * count + other).step_by(count * count);
                let weights: Vec<f32> = weights.copied().collect();
                add_weighted(device, &mut predicted, &weights, stream)?;
            }
            Ok(predicted)
        };
        let predicted = (0..count).map(predict).collect::<Result<Parted<D>, Error>>()?;
        let mut active = device.zeros_like(&predicted[self.active])?;
        add_weighted(device, &mut active, &once, &predicted[self.active])?;
        Ok((predicted, active))
    }

    /// The `predicted` streams, corrected by what came of the active one, and that one as its last branch takes it.
    pub(crate) fn correct(
        &self,
        device: &D,
        mut predicted: Parted<D>,
        found: D::Rows,
        kinds: &RowKinds,
    ) -> Result<(Parted<D>, D::Rows), Error> {
        let count = self.count;
        let modes = self.modes(device, &found, kinds)?;
        let [all] = device.linear([&self.correction], &modes, kinds)?;
        let all = device.values(all)?; // [rows, count]
        let mut news = found;
        add_weighted(device, &mut news, &vec![-1.0; kinds.rows()], &predicted[self.active])?;
        for (index, stream) in predicted.iter_mut().enumerate() {
            let weights = all.iter().skip(index).step_by(count);
            let weights: Vec<f32> = weights.map(|weight| weight + 1.0).collect();
            add_weighted(device, stream, &weights, &news)?;
        }
        let mut active = device.zeros_like(&news)?;
        add_weighted(device, &mut active, &vec![1.0; kinds.rows()], &predicted[self.active])?;
        Ok((predicted, device.scale_columns(active, &self.scale)?))
    }

    /// All streams behind each other, `result` added to each but the first.
    pub(crate) fn together(
        &self,
        device: &D,
        mut streams: Parted<D>,
        result: &D::Rows,
        kinds: &RowKinds,
    ) -> Result<D::Rows, Error> {
        let once = vec![1.0; kinds.rows()];
        for stream in &mut streams[1..] {
            add_weighted(device, stream, &once, result)?;
        }
        let parts: Vec<_> = streams.iter().map(|stream| (stream, self.hidden_size)).collect();
        device.join(&parts)
    }

    /// `tanh(router(norm(x) · router_multiplier))`, `[rows, count]`.
    fn modes(&self, device: &D, x: &D::Rows, kinds: &RowKinds) -> Result<D::Rows, Error> {
        let normed = device.scale(device.norm(&self.norm, x)?, self.router_multiplier)?;
        let [routed] = device.linear([&self.router], &normed, kinds)?;
        // tanh(x) = 2 / (1 + exp(-2 x)) - 1
        let sigmoid = device.activate(Activation::Sigmoid, device.scale(routed, 2.0)?)?;
        let modes = device.values(sigmoid)?.into_iter().map(|value| 2.0 * value - 1.0);
        device.rows(modes.collect(), self.count)
    }
}

/// Adds all rows of `x`, each times its weight, to those of `sums`.
pub(super) fn add_weighted<D: Device>(
    device: &D,
    sums: &mut D::Rows,
    weights: &[f32],
    x: &D::Rows,
) -> Result<(), Error> {
    let rows: Vec<usize> = (0..weights.len()).collect();
    device.scatter_add(sums, &rows, weights, x)
}
