//! Linear layers: the one door to the weights of a model.

use std::ops::Range;

use cake_checkpoint::MappedTensor;
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor};

use crate::batch::RowKinds;
use crate::error::Error;
use crate::kernel::{FloatType, Matrix, Tier, matmul, prompt_matmul};
use crate::options::Ops;
use crate::tensors;

/// `y = x · weightᵀ + bias` with a weight that stays as it is stored.
///
/// The weight may be some rows of a larger matrix, so fused projections are several of these.
pub(crate) struct Linear {
    inputs: usize,
    outputs: usize,
    weight: Weight,
}

enum Weight {
    /// Rows of a mapped matrix.
    Stored {
        tensor: MappedTensor,
        float: FloatType,
        /// The bytes of the rows.
        range: Range<usize>,
        bias: Option<Vec<f32>>,
        tier: Tier,
    },
    /// `[inputs, outputs]` and `[outputs]`, widened: the reference path.
    Candle { transposed: Tensor, bias: Option<Tensor> },
}

impl Linear {
    /// The layer whose weight is `rows` of `tensor`, `[any, inputs]`.
    ///
    /// # Errors
    /// If the tensor's type, shape or length is not that; `name` is for the message.
    pub(crate) fn new(
        name: &str,
        tensor: MappedTensor,
        rows: Range<usize>,
        inputs: usize,
        bias: Option<Vec<f32>>,
        ops: Ops,
    ) -> Result<Linear, Error> {
        let float = float_type(name, &tensor)?;
        let total = tensor.shape().first().copied().unwrap_or(0);
        if tensor.shape() != [total, inputs as u64] || (rows.end as u64) > total {
            let expected = vec![total.max(rows.end as u64), inputs as u64];
            let found = tensor.shape().to_vec();
            return Err(Error::WrongShape { name: name.to_owned(), expected, found });
        }
        let row_bytes = inputs * float.bytes();
        let range = rows.start * row_bytes..rows.end * row_bytes;
        let outputs = rows.len();
        let weight = match ops {
            Ops::Cake => Weight::Stored { tensor, float, range, bias, tier: Tier::detect() },
            Ops::Candle => {
                let widened = float.widen(&tensor.bytes()[range]);
                let transposed = tensors::matrix(widened, outputs, inputs)?.t()?;
                let bias = bias.map(|bias| Tensor::from_vec(bias, outputs, &Device::Cpu));
                Weight::Candle { transposed, bias: bias.transpose()? }
            }
        };
        Ok(Linear { inputs, outputs, weight })
    }

    /// `x` is `[rows, inputs]`, its rows of these `kinds`, the result `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        match &self.weight {
            Weight::Stored { .. } => x.apply_op1_no_bwd(&Product { layer: self, kinds }),
            Weight::Candle { transposed, bias } => {
                let y = x.matmul(transposed)?;
                match bias {
                    Some(bias) => y.broadcast_add(bias),
                    None => Ok(y),
                }
            }
        }
    }
}

/// The kernels as candle sees them.
struct Product<'a> {
    layer: &'a Linear,
    kinds: &'a RowKinds,
}

impl CustomOp1 for Product<'_> {
    fn name(&self) -> &'static str {
        "cake-linear"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let Weight::Stored { tensor, float, range, bias, tier } = &self.layer.weight else {
            candle_core::bail!("a widened weight has no kernel");
        };
        let (rows, inputs) = layout.shape().dims2()?;
        if inputs != self.layer.inputs {
            candle_core::bail!("{inputs} inputs for a layer of {}", self.layer.inputs);
        }
        let x = tensors::values(storage, layout)?;
        let bytes = &tensor.bytes()[range.clone()];
        let weight = Matrix { bytes, float: *float, inputs };
        let mut y = Vec::new();
        for (run, rounded) in self.kinds.runs() {
            let product = if rounded { prompt_matmul } else { matmul };
            let x = &x[run.start * inputs..run.end * inputs];
            let part = product(*tier, weight, bias.as_deref(), x);
            match y.is_empty() {
                true => y = part, // Moved: nearly every step has one run.
                false => y.extend(part),
            }
        }
        Ok((CpuStorage::F32(y), (rows, self.layer.outputs).into()))
    }
}

/// The kernel type of a tensor, whose length is checked against its shape.
pub(crate) fn float_type(name: &str, tensor: &MappedTensor) -> Result<FloatType, Error> {
    let dtype = tensor.dtype();
    let float = FloatType::of(dtype)
        .ok_or_else(|| Error::UnsupportedDtype { name: name.to_owned(), dtype })?;
    let elements = tensor.shape().iter().fold(1u64, |product, &axis| product.saturating_mul(axis));
    let expected = elements.saturating_mul(float.bytes() as u64);
    let found = tensor.bytes().len() as u64;
    if expected != found {
        return Err(Error::WrongLength { name: name.to_owned(), expected, found });
    }
    Ok(float)
}
