//! The gated feed-forward network of a layer.

use cake_checkpoint::{Activation, MlpSpec};
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::batch::RowKinds;
use crate::device::cpu::elementwise::gated;
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::isa::tier::Tier;
use crate::error::Error;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::options::Ops;
use crate::tensors;

/// `down(activation(gate(x)) · up(x))`.
pub(crate) struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    activation: Activation,
    ops: Ops,
}

impl Mlp {
    /// The scores of attention magnify what is lost before them; here, half as many bits cost little,
    /// and most of a prompt's time is spent here. The gate's product goes through an exponential: its
    /// packed weights keep their bits.
    pub(crate) fn load(loader: &LayerLoader<'_>, spec: &MlpSpec) -> Result<Mlp, Error> {
        let [gate, up] = spec.gate_up();
        let mut gate_proj = loader.linear(&gate, Precision::Bf16)?;
        let up_proj = loader.linear(&up, Precision::Bf16Both)?;
        let down_proj = loader.linear(&spec.down(), Precision::Bf16Both)?;
        gate_proj.precede(&[&down_proj]);
        let (activation, ops) = (spec.activation, loader.options.ops);
        Ok(Mlp { gate_proj, up_proj, down_proj, activation, ops })
    }

    /// The first products of a step.
    pub(crate) fn first(&self) -> [&Linear; 2] {
        [&self.gate_proj, &self.up_proj]
    }

    /// Says whose products come after the last one of a step.
    pub(crate) fn precede(&mut self, later: &[&Linear]) {
        self.down_proj.precede(later);
    }

    /// `hidden` is `[rows, hidden_size]`, its rows of these `kinds`, and so is the result.
    pub(crate) fn forward(&self, hidden: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        let [gate, up] = Linear::forward_each(self.first(), hidden, kinds)?; // [rows, inner_size]
        let product = match (self.ops, self.activation) {
            (Ops::Cake, activation) => {
                gate.apply_op2_no_bwd(&up, &Gated(Tier::detect(), activation))?
            }
            (Ops::Candle, Activation::Silu) => (gate.silu()? * up)?,
            (Ops::Candle, Activation::GeluTanh) => (gate.gelu()? * up)?,
        };
        self.down_proj.forward(&product, kinds)
    }
}

/// `activation(a) · b`, elementwise.
struct Gated(Tier, Activation);

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "cake-gated"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let gate = tensors::values(gate, gate_layout)?;
        let y = gated(self.0, self.1, gate, tensors::values(up, up_layout)?);
        Ok((CpuStorage::F32(y), gate_layout.shape().clone()))
    }
}
