//! The gated short convolution of one decoder layer.

use cake_checkpoint::ShortConvolutionSpec;

use crate::device::{Convolution, Device};
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::options::Precision;
use crate::step::Step;

/// `output(c · convolution(b · x))`, following `Lfm2ShortConv` in Hugging Face transformers.
pub(crate) struct ShortConvolution<D: Device> {
    /// What makes `b`, `c` and `x`.
    input: [D::Weight; 3],
    convolution: Convolution,
    output: D::Weight,
    state: D::State,
}

impl<D: Device> ShortConvolution<D> {
    pub(crate) fn load(
        loader: &LayerLoader<'_, D>,
        spec: &ShortConvolutionSpec,
    ) -> Result<Self, Error> {
        let linear = |spec| loader.linear(spec, Precision::Bf16x2);
        let [b, c, x] = spec.input();
        let (mut b, c, x) = (linear(&b)?, linear(&c)?, linear(&x)?);
        let output = linear(&spec.output())?;
        loader.device.precede(&mut b, &[&output]);
        let convolution = loader.convolution(&spec.convolution)?;
        let state = loader.device.convolution_state(&convolution, loader.options)?;
        Ok(ShortConvolution { input: [b, c, x], convolution, output, state })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&D::Weight; 3] {
        self.input.each_ref()
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
        let [b, c, x] = device.linear(self.first(), hidden, &step.kinds)?; // [rows, hidden_size] each
        let x = device.multiply(x, &b)?;
        drop(b);
        let convolved = device.convolve(&self.convolution, &mut self.state, step, &x)?;
        drop(x);
        let [output] =
            device.linear([&self.output], &device.multiply(convolved, &c)?, &step.kinds)?;
        Ok(output)
    }
}
