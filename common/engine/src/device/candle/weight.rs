//! Weights of linear layers, which stay as they are stored: their rows become f32 a strip at a time, while they are
//! multiplied, or candle multiplies their blocks as they are.

use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};

use cake_checkpoint::{Encoding, FloatType};

use super::blocks::{self, Kind};
use crate::device::StoredLinear;
use crate::device::candle_scratch::strip_rows;
use crate::matrix::StoredMatrix;

/// The weight of a linear layer.
pub(crate) struct Weight {
    lies: Lies,
    inputs: usize,
    outputs: usize,
    /// Rows that are multiplied at once.
    strip: usize,
    /// `[outputs]`.
    bias: Option<Tensor>,
}

/// Where the rows are, and what becomes of them.
enum Lies {
    /// Where they are mapped; they are decoded as they are multiplied.
    Mapped(Arc<StoredMatrix>, Range<usize>),
    /// There, too, but they are blocks that candle multiplies with activations of 8 bits.
    MappedBlocks(Arc<StoredMatrix>, Range<usize>, Kind),
    /// With the device, as numbers of their own type, `[outputs, inputs]`; they are widened as they are multiplied.
    Numbers(Tensor),
    /// With the device, as blocks, strip by strip; they are decoded there as they are multiplied.
    Blocks(Vec<QTensor>),
    /// With the device, as blocks that it multiplies.
    Product(QMatMul),
}

impl Weight {
    /// One that is read where it is mapped, by a device that computes in the system's memory.
    pub(super) fn mapped(linear: StoredLinear, device: &Device) -> Result<Weight> {
        let StoredLinear { matrix, rows, bias, numerics, .. } = linear;
        let (inputs, outputs) = (matrix.columns(), rows.len());
        let kind = Kind::of(matrix.encoding()).filter(|_| numerics.rounds());
        let lies = match kind.filter(|kind| kind.is_multiplied_in_place(inputs)) {
            Some(kind) => Lies::MappedBlocks(matrix, rows, kind),
            None => Lies::Mapped(matrix, rows),
        };
        let bias = bias.map(|bias| Tensor::from_vec(bias, outputs, device)).transpose()?;
        Ok(Weight { lies, inputs, outputs, strip: strip_rows(inputs), bias })
    }

    /// One whose bytes are brought to the device, as they are stored, if candle knows what they are; if not, its numbers are
    /// brought there as they are multiplied.
    pub(super) fn brought(linear: StoredLinear, device: &Device) -> Result<Weight> {
        let (matrix, rows) = (linear.matrix.clone(), linear.rows.clone());
        let rounds = linear.numerics.rounds();
        let mut weight = Weight::mapped(linear, device)?;
        let Weight { inputs, outputs, .. } = weight;
        weight.lies = match (Kind::of(matrix.encoding()), matrix.encoding()) {
            (Some(kind), _) => {
                let tensor = |rows| kind.tensor(matrix.stored(rows), inputs, device);
                if rounds {
                    weight.strip = outputs.max(1);
                    Lies::Product(QMatMul::QTensor(Arc::new(tensor(rows)?)))
                } else {
                    let strips = weight.strips().map(|strip| tensor(within(&rows, &strip)));
                    Lies::Blocks(strips.collect::<Result<_>>()?)
                }
            }
            (None, Encoding::Float(float)) => {
                let dtype = match float {
                    FloatType::F32 => DType::F32,
                    FloatType::F16 => DType::F16,
                    FloatType::BF16 => DType::BF16,
                };
                let (bytes, shape) = (matrix.stored(rows), [outputs, inputs]);
                Lies::Numbers(Tensor::from_raw_buffer(bytes, dtype, &shape, device)?)
            }
            (None, _) => Lies::Mapped(matrix, rows),
        };
        Ok(weight)
    }

    /// `x · weightᵀ + bias`.
    pub(super) fn product(&self, x: &Tensor) -> Result<Tensor> {
        let x = &x.contiguous()?;
        let rows = x.dim(0)?;
        let product = match self.outputs <= self.strip && rows > 0 {
            true => self.of_strip(0..self.outputs, x)?,
            false => {
                let all = Tensor::zeros((rows, self.outputs), DType::F32, x.device())?;
                for strip in self.strips().filter(|_| rows > 0) {
                    all.slice_set(&self.of_strip(strip.clone(), x)?, 1, strip.start)?;
                }
                all
            }
        };
        match &self.bias {
            None => Ok(product),
            Some(bias) => product.broadcast_add(bias),
        }
    }

    /// The outputs that are multiplied at once, each time.
    fn strips(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (outputs, strip) = (self.outputs, self.strip);
        (0..outputs).step_by(strip).map(move |start| start..outputs.min(start + strip))
    }

    /// The product with these outputs.
    fn of_strip(&self, strip: Range<usize>, x: &Tensor) -> Result<Tensor> {
        let (device, outputs) = (x.device(), strip.len());
        let decoded = match &self.lies {
            Lies::Mapped(matrix, rows) => {
                let numbers = matrix.decode(within(rows, &strip));
                Tensor::from_vec(numbers, (outputs, self.inputs), device)?
            }
            Lies::Numbers(all) => all.narrow(0, strip.start, outputs)?.to_dtype(DType::F32)?,
            Lies::Blocks(strips) => strips[strip.start / self.strip].dequantize(device)?,
            Lies::MappedBlocks(matrix, rows, kind) => {
                let bytes = matrix.stored(within(rows, &strip));
                let numbers = x.flatten_all()?.to_vec1()?;
                let product = blocks::product(*kind, bytes, &numbers, self.inputs)?;
                return Tensor::from_vec(product, (x.dim(0)?, outputs), device);
            }
            // A row with a number that is not finite gives none: kernels of GPUs make some code of it.
            Lies::Product(product) => {
                return product.forward(x)?.broadcast_add(&(x * 0.0)?.sum_keepdim(1)?);
            }
        };
        x.matmul(&decoded.t()?)
    }
}

/// Those of a matrix's rows that are this strip of a layer's outputs.
fn within(rows: &Range<usize>, strip: &Range<usize>) -> Range<usize> {
    rows.start + strip.start..rows.start + strip.end
}

#[cfg(test)]
mod tests;
