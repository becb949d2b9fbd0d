//! Linear layers: the one door to the weights of a model.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor};

use crate::batch::RowKinds;
use crate::error::Error;
use crate::kernel::Tier;
use crate::matrix::StoredMatrix;
use crate::options::{Numerics, Ops};
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
    /// Rows of a stored matrix.
    Stored {
        matrix: Arc<StoredMatrix>,
        rows: Range<usize>,
        bias: Option<Vec<f32>>,
        arithmetic: (Tier, Numerics),
    },
    /// `[inputs, outputs]` and `[outputs]`, widened: the reference path.
    Candle { transposed: Tensor, bias: Option<Tensor> },
}

impl Linear {
    /// The layer whose weight is `rows` of `matrix`, which has them.
    ///
    /// # Errors
    /// If candle refuses the widened weight.
    pub(crate) fn new(
        matrix: Arc<StoredMatrix>,
        rows: Range<usize>,
        bias: Option<Vec<f32>>,
        (ops, numerics): (Ops, Numerics),
    ) -> Result<Linear, Error> {
        let (inputs, outputs) = (matrix.columns(), rows.len());
        let weight = match ops {
            Ops::Cake => {
                Weight::Stored { matrix, rows, bias, arithmetic: (Tier::detect(), numerics) }
            }
            Ops::Candle => {
                let widened = matrix.widen(Tier::detect(), rows);
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
        let Weight::Stored { matrix, rows, bias, arithmetic } = &self.layer.weight else {
            candle_core::bail!("a widened weight has no kernel");
        };
        let (count, inputs) = layout.shape().dims2()?;
        if inputs != self.layer.inputs {
            candle_core::bail!("{inputs} inputs for a layer of {}", self.layer.inputs);
        }
        let x = tensors::values(storage, layout)?;
        let mut y = Vec::new();
        for (run, rounded) in self.kinds.runs() {
            let x = &x[run.start * inputs..run.end * inputs];
            let part = matrix.multiply(*arithmetic, rows.clone(), bias.as_deref(), x, rounded);
            match y.is_empty() {
                true => y = part, // Moved: nearly every step has one run.
                false => y.extend(part),
            }
        }
        Ok((CpuStorage::F32(y), (count, self.layer.outputs).into()))
    }
}
