//! A residual of few numbers.

use cake_checkpoint::LowRankSpec;

use super::streams::add_weighted;
use crate::batch::RowKinds;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;

/// `x + norm(second(first(x)))`, following `Gemma3nTextLaurelBlock` in Hugging Face transformers.
pub(crate) struct LowRank<D: Device> {
    first: D::Weight,
    second: D::Weight,
    norm: D::Norm,
}

impl<D: Device> LowRank<D> {
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &LowRankSpec) -> Result<Self, Error> {
        let [first, second] = spec.linears();
        let second = loader.linear(&second, Precision::Bf16x2)?;
        let mut first = loader.linear(&first, Precision::Bf16x2)?;
        loader.device.precede(&mut first, &[&second]);
        Ok(LowRank { first, second, norm: loader.norm(&spec.norm)? })
    }

    /// The first product of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 1] {
        [&self.first]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, device: &D, later: &[&D::Weight]) {
        device.precede(&mut self.second, later);
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result.
    pub(crate) fn forward(
        &self,
        device: &D,
        hidden: &D::Rows,
        kinds: &RowKinds,
    ) -> Result<D::Rows, Error> {
        let [few] = device.linear([&self.first], hidden, kinds)?; // [rows, rank]
        let [product] = device.linear([&self.second], &few, kinds)?;
        let mut result = device.norm(&self.norm, &product)?;
        add_weighted(device, &mut result, &vec![1.0; kinds.rows()], hidden)?;
        Ok(result)
    }
}
