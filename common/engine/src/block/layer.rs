//! One decoder layer as candle code: the residual branches that its specification lists.

use cake_checkpoint::{LayerSpec, Op};
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};

use super::attention::Attention;
use super::experts::Experts;
use super::mlp::Mlp;
use super::norm::RmsNorm;
use super::step::Step;
use crate::device::cpu::elementwise::add;
use crate::error::Error;
use crate::linear::Linear;
use crate::loader::LayerLoader;
use crate::options::Ops;
use crate::tensors;

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
    Experts(Box<Experts>),
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
                    Op::Experts(spec) => Operation::Experts(Box::new(Experts::load(loader, spec)?)),
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
                Operation::Experts(experts) => experts.forward(&normed, &step.kinds)?,
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
            Operation::Mlp(mlp) => &mlp.first(),
            Operation::Experts(experts) => &[experts.first()],
        };
        match self {
            Operation::Attention(attention) => attention.precede(first),
            Operation::Mlp(mlp) => mlp.precede(first),
            // Which of its products is the last one is not known before.
            Operation::Experts(_) => {}
        }
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
