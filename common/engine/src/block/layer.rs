//! One decoder layer: the residual branches that its specification lists.

use cake_checkpoint::{LayerSpec, Op};

use super::attention::Attention;
use super::delta::Delta;
use super::experts::Experts;
use super::latent::Latent;
use super::low_rank::LowRank;
use super::mamba::Mamba;
use super::mlp::Mlp;
use super::short_convolution::ShortConvolution;
use super::streams::Streams;
use super::with_given::WithGiven;
use crate::device::Device;
use crate::error::Error;
use crate::loader::LayerLoader;
use crate::row::Hidden;
use crate::step::Step;

/// `x += multiplier · post(op(pre(x)))` for each branch, in order.
pub(crate) struct DecoderLayer<D: Device> {
    branches: Vec<Branch<D>>,
    /// Whether it is a slice of experts of which later ones are elsewhere.
    is_partial: bool,
    /// What the hidden states are multiplied with in the end.
    scalar: Option<f32>,
    /// Where there are several streams of hidden states: what predicts and corrects them, and what is added to all but the
    /// first.
    streams: Option<(Streams<D>, Branch<D>)>,
}

/// A residual branch.
struct Branch<D: Device> {
    pre: Option<D::Norm>,
    op: Operation<D>,
    post: Option<D::Norm>,
    multiplier: f32,
    residual: Option<f32>,
}

/// An operation between norms of its own.
struct Normed<D: Device> {
    pre: Option<D::Norm>,
    op: Operation<D>,
    post: Option<D::Norm>,
    multiplier: Option<f32>,
}

/// What a layer's operations find beside their input.
struct Around<'a, D: Device> {
    /// The layers of the stage before this one.
    earlier: &'a [DecoderLayer<D>],
    /// The sums of the experts before those of this layer, `[rows, hidden_size]`, if it is a slice of them.
    sums: Option<D::Rows>,
}

/// What a branch computes.
enum Operation<D: Device> {
    Attention(Box<Attention<D>>),
    Latent(Box<Latent<D>>),
    ShortConvolution(Box<ShortConvolution<D>>),
    Delta(Box<Delta<D>>),
    Mamba(Box<Mamba<D>>),
    Mlp(Box<Mlp<D>>),
    Experts(Box<Experts<D>>),
    WithGiven(Box<WithGiven<D>>),
    LowRank(Box<LowRank<D>>),
    Sum(Vec<Operation<D>>),
    Normed(Box<Normed<D>>),
}

impl<D: Device> DecoderLayer<D> {
    pub(crate) fn load(loader: &LayerLoader<'_, D>, spec: &LayerSpec) -> Result<Self, Error> {
        let norm = |norm: &Option<_>| norm.as_ref().map(|norm| loader.norm(norm)).transpose();
        let load = |spec: &cake_checkpoint::Branch| {
            Ok(Branch {
                pre: norm(&spec.pre)?,
                op: Operation::load(loader, &spec.op)?,
                post: norm(&spec.post)?,
                multiplier: spec.multiplier,
                residual: spec.residual,
            })
        };
        let mut branches = spec.branches.iter().map(load).collect::<Result<Vec<_>, Error>>()?;
        for index in 1..branches.len() {
            let (before, later) = branches.split_at_mut(index);
            before[index - 1].op.precede(loader.device, &later[0].op);
        }
        let scalar = spec.scalar().map(|tensor| loader.parameter(&tensor)).transpose()?;
        let scalar = scalar.and_then(|numbers| numbers.first().copied());
        let streams = match (&spec.streams, &spec.others) {
            (Some(streams), Some(others)) => Some((Streams::load(loader, streams)?, load(others)?)),
            _ => None,
        };
        Ok(DecoderLayer { branches, is_partial: spec.is_partial(), scalar, streams })
    }

    /// Says which layer comes after this one.
    pub(crate) fn precede(&mut self, device: &D, later: &DecoderLayer<D>) {
        if let (Some(last), Some(first)) = (self.branches.last_mut(), later.branches.first()) {
            last.op.precede(device, &first.op);
        }
    }

    /// The keys and values that its only attention makes.
    fn kept(&self) -> Option<&D::Kept> {
        self.branches.iter().find_map(|branch| branch.op.kept())
    }

    /// Hidden states are `[rows, hidden_size]`, and so are those of the result; `earlier` are the layers of the stage before
    /// this one.
    pub(crate) fn forward(
        &mut self,
        device: &D,
        hidden: Hidden<D::Rows>,
        step: &Step<'_>,
        earlier: &[DecoderLayer<D>],
    ) -> Result<Hidden<D::Rows>, Error> {
        let Self { branches, is_partial, scalar, streams } = self;
        let Hidden { states: hidden, sums } = hidden;
        let mut around = Around { earlier, sums };
        if let ([only], true) = (&mut branches[..], *is_partial) {
            let sums = only.forward(device, &hidden, step, &mut around)?;
            return Ok(Hidden { states: hidden, sums: Some(sums) });
        }
        let hidden = match streams {
            None => through(branches, device, hidden, step, &mut around)?,
            Some((streams, others)) => {
                let (predicted, active) = streams.predict(device, hidden, &step.kinds)?;
                let found = through(branches, device, active, step, &mut around)?;
                let (corrected, active) = streams.correct(device, predicted, found, &step.kinds)?;
                let result = others.forward(device, &active, step, &mut around)?;
                drop(active);
                streams.together(device, corrected, &result, &step.kinds)?
            }
        };
        let states = match scalar {
            Some(scalar) => device.scale(hidden, *scalar)?,
            None => hidden,
        };
        Ok(Hidden { states, sums: around.sums })
    }
}

/// What hidden states, `[rows, hidden_size]`, become by these branches.
fn through<D: Device>(
    branches: &mut [Branch<D>],
    device: &D,
    hidden: D::Rows,
    step: &Step<'_>,
    around: &mut Around<'_, D>,
) -> Result<D::Rows, Error> {
    let mut hidden = hidden;
    for branch in branches {
        let result = branch.forward(device, &hidden, step, around)?;
        if let Some(residual) = branch.residual {
            hidden = device.scale(hidden, residual)?;
        }
        hidden = device.add(hidden, result)?;
    }
    Ok(hidden)
}

impl<D: Device> Branch<D> {
    /// What is added to hidden states, `[rows, hidden_size]`.
    fn forward(
        &mut self,
        device: &D,
        hidden: &D::Rows,
        step: &Step<'_>,
        around: &mut Around<'_, D>,
    ) -> Result<D::Rows, Error> {
        let Branch { pre, op, post, multiplier, .. } = self;
        let normed = pre.as_ref().map(|norm| device.norm(norm, hidden)).transpose()?;
        let mut result = op.forward(device, normed.as_ref().unwrap_or(hidden), step, around)?;
        drop(normed);
        if let Some(norm) = post {
            result = device.norm(norm, &result)?;
        }
        match *multiplier {
            1.0 => Ok(result),
            multiplier => device.scale(result, multiplier),
        }
    }
}

impl<D: Device> Operation<D> {
    fn load(loader: &LayerLoader<'_, D>, spec: &Op) -> Result<Self, Error> {
        Ok(match spec {
            Op::Attention(it) => Operation::Attention(Box::new(Attention::load(loader, it)?)),
            Op::Latent(it) => Operation::Latent(Box::new(Latent::load(loader, it)?)),
            Op::ShortConvolution(it) => {
                Operation::ShortConvolution(Box::new(ShortConvolution::load(loader, it)?))
            }
            Op::Delta(it) => Operation::Delta(Box::new(Delta::load(loader, it)?)),
            Op::Mamba(it) => Operation::Mamba(Box::new(Mamba::load(loader, it)?)),
            Op::Mlp(it) => Operation::Mlp(Box::new(Mlp::load(loader, it)?)),
            Op::Experts(it) => Operation::Experts(Box::new(Experts::load(loader, it)?)),
            Op::LowRank(it) => Operation::LowRank(Box::new(LowRank::load(loader, it)?)),
            Op::WithGiven(it) => Operation::WithGiven(Box::new(WithGiven::load(loader, it)?)),
            Op::Sum(parts) => {
                let load = |part| Operation::load(loader, part);
                let mut parts = parts.iter().map(load).collect::<Result<Vec<_>, Error>>()?;
                for index in 1..parts.len() {
                    let (before, later) = parts.split_at_mut(index);
                    before[index - 1].precede(loader.device, &later[0]);
                }
                Operation::Sum(parts)
            }
            Op::Normed(it) => {
                let norm = |norm: &Option<_>| norm.as_ref().map(|it| loader.norm(it)).transpose();
                let (pre, op) = (norm(&it.pre)?, Operation::load(loader, &it.op)?);
                let (post, multiplier) = (norm(&it.post)?, it.multiplier);
                Operation::Normed(Box::new(Normed { pre, op, post, multiplier }))
            }
        })
    }

    /// The keys and values that it makes, if it attends to such.
    fn kept(&self) -> Option<&D::Kept> {
        match self {
            Operation::Attention(attention) => attention.kept(),
            Operation::Sum(parts) => parts.iter().find_map(Operation::kept),
            Operation::Normed(it) => it.op.kept(),
            // No layer attends to latents of another one.
            Operation::Latent(_)
            | Operation::ShortConvolution(_)
            | Operation::Delta(_)
            | Operation::Mamba(_)
            | Operation::Mlp(_)
            | Operation::Experts(_)
            | Operation::WithGiven(_)
            | Operation::LowRank(_) => None,
        }
    }

    /// What it makes of `input`, `[rows, hidden_size]`, of the same shape.
    fn forward(
        &mut self,
        device: &D,
        input: &D::Rows,
        step: &Step<'_>,
        around: &mut Around<'_, D>,
    ) -> Result<D::Rows, Error> {
        match self {
            Operation::Attention(attention) => {
                let of = attention.keys_of().and_then(|of| of.checked_sub(step.first_layer));
                let others = of.and_then(|place| around.earlier.get(place)?.kept());
                attention.forward(device, input, step, others)
            }
            Operation::Latent(latent) => latent.forward(device, input, step),
            Operation::ShortConvolution(it) => it.forward(device, input, step),
            Operation::Delta(delta) => delta.forward(device, input, step),
            Operation::Mamba(mamba) => mamba.forward(device, input, step),
            Operation::Mlp(mlp) => mlp.forward(device, input, &step.kinds),
            Operation::Experts(experts) => {
                experts.forward(device, input, &step.kinds, around.sums.take())
            }
            Operation::WithGiven(it) => it.forward(device, input, step),
            Operation::LowRank(it) => it.forward(device, input, &step.kinds),
            Operation::Sum(parts) => {
                let mut sum = None;
                for part in parts {
                    let result = part.forward(device, input, step, around)?;
                    sum = Some(match sum {
                        None => result,
                        Some(sum) => device.add(sum, result)?,
                    });
                }
                sum.map_or_else(|| device.zeros_like(input), Ok)
            }
            Operation::Normed(it) => {
                let Normed { pre, op, post, multiplier } = &mut **it;
                let normed = pre.as_ref().map(|norm| device.norm(norm, input)).transpose()?;
                let input = normed.as_ref().unwrap_or(input);
                let mut result = op.forward(device, input, step, around)?;
                if let Some(norm) = post {
                    result = device.norm(norm, &result)?;
                }
                match multiplier {
                    Some(multiplier) => device.scale(result, *multiplier),
                    None => Ok(result),
                }
            }
        }
    }

    /// The first products of a step.
    fn first(&self) -> Vec<&D::Weight> {
        match self {
            Operation::Attention(attention) => attention.first(),
            Operation::Latent(latent) => latent.first().into(),
            Operation::ShortConvolution(it) => it.first().into(),
            Operation::Delta(delta) => delta.first(),
            Operation::Mamba(mamba) => mamba.first().into(),
            Operation::Mlp(mlp) => mlp.first(),
            Operation::Experts(experts) => vec![experts.first()],
            Operation::WithGiven(it) => it.first().into(),
            Operation::LowRank(it) => it.first().into(),
            Operation::Sum(parts) => parts.first().map(Operation::first).unwrap_or_default(),
            Operation::Normed(it) => it.op.first(),
        }
    }

    /// Says what comes after this one.
    fn precede(&mut self, device: &D, later: &Operation<D>) {
        match self {
            Operation::Attention(attention) => attention.precede(device, &later.first()),
            Operation::Latent(latent) => latent.precede(device, &later.first()),
            Operation::ShortConvolution(it) => it.precede(device, &later.first()),
            Operation::Delta(delta) => delta.precede(device, &later.first()),
            Operation::Mamba(mamba) => mamba.precede(device, &later.first()),
            Operation::Mlp(mlp) => mlp.precede(device, &later.first()),
            Operation::WithGiven(it) => it.precede(device, &later.first()),
            Operation::LowRank(it) => it.precede(device, &later.first()),
            // Which of its products is the last one is not known before.
            Operation::Experts(_) => {}
            Operation::Normed(it) => it.op.precede(device, later),
            Operation::Sum(parts) => {
                if let Some(last) = parts.last_mut() {
                    last.precede(device, later);
                }
            }
        }
    }
}
