//! RMS norm over the last axis.

use cake_checkpoint::{MappedTensor, NormSpec};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor};

use crate::device::cpu::elementwise::rms_norm;
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::matrix::vector;
use crate::options::Ops;
use crate::tensors;

/// `(weight + offset) · x / sqrt(mean(x²) + eps)` in f32, as `LlamaRMSNorm` in Hugging Face transformers.
pub(crate) struct RmsNorm {
    weight: Vec<f32>,
    eps: f32,
    ops: Ops,
    tier: Tier,
}

impl RmsNorm {
    /// A norm whose weight is stored as the tensor `name`, `[width]`.
    pub(crate) fn load(
        name: &str,
        tensor: &MappedTensor,
        spec: &NormSpec,
        ops: Ops,
    ) -> Result<RmsNorm, Error> {
        let mut weight = vector(name, tensor, spec.width)?;
        weight.iter_mut().for_each(|weight| *weight += spec.offset);
        Ok(RmsNorm { weight, eps: spec.eps as f32, ops, tier: Tier::detect() })
    }

    /// `x` is `[rows, n × width]`; every `width` values are normalised by themselves.
    pub(crate) fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self.ops {
            Ops::Cake => x.apply_op1_no_bwd(self),
            Ops::Candle => {
                let width = self.weight.len();
                let weight = Tensor::from_slice(&self.weight, width, &Device::Cpu)?;
                let rows = x.reshape(((), width))?;
                candle_nn::ops::rms_norm(&rows, &weight, self.eps)?.reshape(x.shape())
            }
        }
    }
}

impl CustomOp1 for RmsNorm {
    fn name(&self) -> &'static str {
        "cake-rms-norm"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = tensors::values(storage, layout)?;
        if x.len() % self.weight.len() != 0 {
            candle_core::bail!("{} values do not divide into {}", x.len(), self.weight.len());
        }
        let y = rms_norm(self.tier, x, &self.weight, self.eps);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }
}
