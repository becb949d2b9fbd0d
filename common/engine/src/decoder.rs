//! One decoder layer as candle code, for every family of the table.

use cake_checkpoint::Projections;
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::attention::Attention;
use crate::batch::{BatchItem, RowKinds};
use crate::error::Error;
use crate::kernel::{AttendRow, Precision, Tier, add, silu_mul};
use crate::kv::KvPool;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::norm::RmsNorm;
use crate::options::Ops;
use crate::rope::Rotation;
use crate::tensors;

/// What all layers share in one step.
pub(crate) struct Step<'a> {
    /// The parts of the step, checked.
    pub(crate) items: &'a [BatchItem],
    /// Every row of them, in order.
    pub(crate) rows: Vec<AttendRow<'a>>,
    /// What kind of arithmetic each row gets.
    pub(crate) kinds: RowKinds,
    /// The rows' rotation.
    pub(crate) rotation: Rotation,
}

/// `x += attention(norm(x)); x += mlp(norm(x))`, as `LlamaDecoderLayer` in Hugging Face
/// transformers.
pub(crate) struct DecoderLayer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
    ops: Ops,
}

impl DecoderLayer {
    pub(crate) fn load(loader: &LayerLoader<'_>) -> Result<DecoderLayer, Error> {
        let hidden = loader.config.hidden_size;
        let mut layer = DecoderLayer {
            input_norm: loader.norm("input_layernorm", hidden)?,
            attention: Attention::load(loader)?,
            post_attention_norm: loader.norm("post_attention_layernorm", hidden)?,
            mlp: Mlp::load(loader)?,
            ops: loader.ops,
        };
        layer.attention.precede([&layer.mlp.gate_proj, &layer.mlp.up_proj]);
        Ok(layer)
    }

    /// Says which layer comes after this one.
    pub(crate) fn precede(&mut self, later: &DecoderLayer) {
        self.mlp.down_proj.precede(later.attention.first());
    }

    /// `hidden` is `[rows, hidden_size]`, and so is the result.
    pub(crate) fn forward(
        &self,
        hidden: &Tensor,
        step: &Step<'_>,
        kv: &mut KvPool,
    ) -> candle_core::Result<Tensor> {
        let attended = self.attention.forward(&self.input_norm.forward(hidden)?, step, kv)?;
        let hidden = self.sum(hidden, &attended)?;
        let expanded =
            self.mlp.forward(&self.post_attention_norm.forward(&hidden)?, &step.kinds)?;
        self.sum(&hidden, &expanded)
    }

    fn sum(&self, a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
        match self.ops {
            Ops::Cake => a.apply_op2_no_bwd(b, &Add),
            Ops::Candle => a + b,
        }
    }
}

/// `down(silu(gate(x)) · up(x))`.
struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    ops: Ops,
}

impl Mlp {
    /// The scores of attention magnify what is lost before them; here, half as many bits cost little,
    /// and most of a prompt's time is spent here. The gate's product goes through an exponential: its
    /// packed weights keep their bits.
    fn load(loader: &LayerLoader<'_>) -> Result<Mlp, Error> {
        let gate = LayerLoader { precision: Precision::Bf16, ..*loader };
        let loader = LayerLoader { precision: Precision::Bf16Both, ..*loader };
        let config = loader.config;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let bias = config.mlp_bias;
        let (mut gate_proj, up_proj) = match config.family.projections {
            Projections::Separate => (
                gate.linear("mlp.gate_proj", (inner, hidden), bias)?,
                loader.linear("mlp.up_proj", (inner, hidden), bias)?,
            ),
            Projections::Fused => {
                let (name, shape) = ("mlp.gate_up_proj", (2 * inner, hidden));
                (
                    gate.linear_rows(name, shape, 0..inner, bias)?,
                    loader.linear_rows(name, shape, inner..2 * inner, bias)?,
                )
            }
        };
        let down_proj = loader.linear("mlp.down_proj", (hidden, inner), bias)?;
        gate_proj.precede([&down_proj]);
        Ok(Mlp { gate_proj, up_proj, down_proj, ops: loader.ops })
    }

    fn forward(&self, hidden: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        let layers = [&self.gate_proj, &self.up_proj];
        let [gate, up] = Linear::forward_each(layers, hidden, kinds)?; // [rows, intermediate_size]
        let product = match self.ops {
            Ops::Cake => gate.apply_op2_no_bwd(&up, &SiluMul(Tier::detect()))?,
            Ops::Candle => (gate.silu()? * up)?,
        };
        self.down_proj.forward(&product, kinds)
    }
}

/// `silu(a) · b`, elementwise.
struct SiluMul(Tier);

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "cake-silu-mul"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let gate = tensors::values(gate, gate_layout)?;
        let y = silu_mul(self.0, gate, tensors::values(up, up_layout)?);
        Ok((CpuStorage::F32(y), gate_layout.shape().clone()))
    }
}

/// `a + b`, elementwise, on our threads instead of candle's.
struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "cake-add"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let y = add(tensors::values(a, a_layout)?, tensors::values(b, b_layout)?);
        Ok((CpuStorage::F32(y), a_layout.shape().clone()))
    }
}
