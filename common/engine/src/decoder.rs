//! One decoder layer as candle code: the residual branches that its specification lists.

use cake_checkpoint::{Activation, LayerSpec, MlpSpec, Op};
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use crate::attention::Attention;
use crate::batch::{BatchItem, RowKinds};
use crate::error::Error;
use crate::kernel::{AttendRow, Precision, Tier, add, gated};
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
    /// The rows' rotations, as layers name them.
    pub(crate) rotations: Vec<Rotation>,
}

/// `x += multiplier · post(op(pre(x)))` for each branch, in order.
pub(crate) struct DecoderLayer {
    branches: Vec<Branch>,
    ops: Ops,
}

/// A residual branch.
struct Branch {
    pre: Option<RmsNorm>,
    op: Operation,
    post: Option<RmsNorm>,
    multiplier: f32,
}

/// What a branch computes.
enum Operation {
    Attention(Box<Attention>),
    Mlp(Box<Mlp>),
}

impl DecoderLayer {
    pub(crate) fn load(loader: &LayerLoader<'_>, spec: &LayerSpec) -> Result<DecoderLayer, Error> {
        let norm = |norm: &Option<_>| norm.as_ref().map(|norm| loader.norm(norm)).transpose();
        let load = |spec: &cake_checkpoint::Branch| {
            Ok(Branch {
                pre: norm(&spec.pre)?,
                op: match &spec.op {
                    Op::Attention(spec) => {
                        Operation::Attention(Box::new(Attention::load(loader, spec)?))
                    }
                    Op::Mlp(spec) => Operation::Mlp(Box::new(Mlp::load(loader, spec)?)),
                },
                post: norm(&spec.post)?,
                multiplier: spec.multiplier,
            })
        };
        let mut branches = spec.branches.iter().map(load).collect::<Result<Vec<_>, Error>>()?;
        for index in 1..branches.len() {
            let (before, later) = branches.split_at_mut(index);
            before[index - 1].op.precede(&later[0].op);
        }
        Ok(DecoderLayer { branches, ops: loader.options.ops })
    }

    /// Says which layer comes after this one.
    pub(crate) fn precede(&mut self, later: &DecoderLayer) {
        if let (Some(last), Some(first)) = (self.branches.last_mut(), later.branches.first()) {
            last.op.precede(&first.op);
        }
    }

    /// `hidden` is `[rows, hidden_size]`, and so is the result.
    pub(crate) fn forward(
        &mut self,
        hidden: Tensor,
        step: &Step<'_>,
    ) -> candle_core::Result<Tensor> {
        let mut hidden = hidden;
        for Branch { pre, op, post, multiplier } in &mut self.branches {
            let normed = match pre {
                Some(norm) => norm.forward(&hidden)?,
                None => hidden.clone(),
            };
            let mut result = match op {
                Operation::Attention(attention) => attention.forward(&normed, step)?,
                Operation::Mlp(mlp) => mlp.forward(&normed, &step.kinds)?,
            };
            drop(normed);
            if let Some(norm) = post {
                result = norm.forward(&result)?;
            }
            if *multiplier != 1.0 {
                result = (result * f64::from(*multiplier))?;
            }
            hidden = match self.ops {
                Ops::Cake => hidden.apply_op2_no_bwd(&result, &Add)?,
                Ops::Candle => (hidden + result)?,
            };
        }
        Ok(hidden)
    }
}

impl Operation {
    /// Says what comes after this one.
    fn precede(&mut self, later: &Operation) {
        let first: &[&Linear] = match later {
            Operation::Attention(attention) => &attention.first(),
            Operation::Mlp(mlp) => &[&mlp.gate_proj, &mlp.up_proj],
        };
        match self {
            Operation::Attention(attention) => attention.precede(first),
            Operation::Mlp(mlp) => mlp.down_proj.precede(first),
        }
    }
}

/// `down(activation(gate(x)) · up(x))`.
struct Mlp {
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
    fn load(loader: &LayerLoader<'_>, spec: &MlpSpec) -> Result<Mlp, Error> {
        let [gate, up] = spec.gate_up();
        let mut gate_proj = loader.linear(&gate, Precision::Bf16)?;
        let up_proj = loader.linear(&up, Precision::Bf16Both)?;
        let down_proj = loader.linear(&spec.down(), Precision::Bf16Both)?;
        gate_proj.precede(&[&down_proj]);
        let (activation, ops) = (spec.activation, loader.options.ops);
        Ok(Mlp { gate_proj, up_proj, down_proj, activation, ops })
    }

    fn forward(&self, hidden: &Tensor, kinds: &RowKinds) -> candle_core::Result<Tensor> {
        let layers = [&self.gate_proj, &self.up_proj];
        let [gate, up] = Linear::forward_each(layers, hidden, kinds)?; // [rows, inner_size]
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
