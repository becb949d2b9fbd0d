//! What one decoder layer is: a list of residual branches, each with its norms and its operation. Everything else that
//! is known of a layer follows from this: its tensors, and what it keeps of each position.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

pub use super::attention::{AttentionSpec, OutputGate, PositionScale};
pub use super::experts::{
    CorrectionSpec, ExpertProjectionsSpec, ExpertRange, ExpertsSpec, RouterGroups, RouterNorm,
    RouterScores, RouterSpec,
};
use super::given::WithGivenSpec;
use super::kv::KvDtype;
use super::latent::LatentSpec;
pub use super::network::{Activation, ClampedGate, GateUp, LowRankSpec, MlpSpec};
pub use super::parts::{Joined, LinearSpec, Name, NormKind, NormSpec, TensorKind, TensorSpec};
pub(super) use super::parts::{is_default, linear, parameter};
use super::recurrent::{ConvolutionSpec, DeltaSpec, MambaSpec, ShortConvolutionSpec};
use super::streams::LayerStreamsSpec;

/// One layer: `x += multiplier · post(op(pre(x)))` for each branch, in order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    /// At least one.
    pub branches: Vec<Branch>,
    /// Name of a tensor `[1]`, below the layer: what the hidden states are multiplied with after all branches.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scalar: Option<Name>,
    /// How it goes on from several streams of hidden states, in a model that has such.
    #[serde(default, skip_serializing_if = "is_default")]
    pub streams: Option<LayerStreamsSpec>,
    /// What is then added to all streams but the first; without a norm before it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub others: Option<Branch>,
}

/// One residual branch. Pre-norm, post-norm and sandwich norms, parallel attention and MLP, and layers of a single
/// mixer are lists of these.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// What the operation's input goes through.
    pub pre: Option<NormSpec>,
    /// The operation.
    pub op: Op,
    /// What its result goes through.
    pub post: Option<NormSpec>,
    /// What its result is multiplied with before it is added.
    pub multiplier: f32,
    /// What the hidden states are multiplied with before it is added to them, if anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub residual: Option<f32>,
}

/// What a branch computes, from `[rows, hidden_size]` to the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Grouped-query attention.
    Attention(AttentionSpec),
    /// Attention over latents.
    Latent(LatentSpec),
    /// A gated short convolution.
    ShortConvolution(ShortConvolutionSpec),
    /// The gated delta rule.
    Delta(DeltaSpec),
    /// A selective state space.
    Mamba(MambaSpec),
    /// A gated feed-forward network.
    Mlp(MlpSpec),
    /// A mixture of such networks.
    Experts(ExpertsSpec),
    /// What the layer makes of what it is given beside hidden states.
    WithGiven(WithGivenSpec),
    /// A residual of few numbers.
    LowRank(LowRankSpec),
    /// The sum of what several compute of the same input; none of them is a sum.
    Sum(Vec<Op>),
    /// An operation with norms of its own, as a part of a sum.
    Normed(Box<NormedSpec>),
}

/// An operation between norms: no sum, and not another of these.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormedSpec {
    /// What its input goes through.
    pub pre: Option<NormSpec>,
    /// The operation.
    pub op: Op,
    /// What its result goes through.
    pub post: Option<NormSpec>,
    /// What that is multiplied with, if anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub multiplier: Option<f32>,
}

/// What a layer keeps of a sequence, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// Of keys, of each position.
    pub keys: usize,
    /// Of values, of each position.
    pub values: usize,
    /// Groups of all these numbers, of each position: [`KvDtype::GROUP`] neighbours of one head at most.
    pub groups: usize,
    /// Of recurrent state, in f32, however many positions there are.
    pub state: usize,
}

impl Kept {
    /// Bytes of one position.
    pub fn bytes(self, kv: KvDtype) -> u64 {
        let numbers = (self.keys as u64).saturating_add(self.values as u64);
        let scales = (self.groups as u64).saturating_mul(kv.scale_bytes() as u64);
        numbers.saturating_mul(kv.number_bytes() as u64).saturating_add(scales)
    }
}

impl Op {
    /// Its linear layers.
    pub fn linears(&self) -> Vec<LinearSpec> {
        match self {
            Op::Attention(attention) => {
                let others = [attention.output()].into_iter().chain(attention.gate());
                attention.qkv().into_iter().chain(others).collect()
            }
            Op::Latent(latent) => latent.linears().collect(),
            Op::ShortConvolution(it) => it.linears().collect(),
            Op::Delta(it) => it.linears().collect(),
            Op::Mamba(it) => it.linears().collect(),
            Op::Mlp(mlp) => mlp.linears().collect(),
            Op::WithGiven(it) => vec![it.gate(), it.output()],
            Op::LowRank(it) => it.linears().into(),
            Op::Experts(experts) => {
                let each = (experts.here())
                    .flat_map(|index| experts.expert(index).linears().collect::<Vec<_>>());
                let before = [experts.router()].into_iter().chain(experts.input());
                before.chain(each).chain(experts.output()).collect()
            }
            Op::Sum(parts) => parts.iter().flat_map(Op::linears).collect(),
            Op::Normed(it) => it.op.linears(),
        }
    }

    /// Its norms.
    pub fn norms(&self) -> Vec<&NormSpec> {
        match self {
            Op::Attention(attention) => attention.qk_norms().collect(),
            Op::Latent(latent) => latent.norms().collect(),
            Op::Delta(it) => vec![&it.norm],
            Op::Mamba(it) => it.norm.iter().collect(),
            Op::LowRank(it) => vec![&it.norm],
            Op::Experts(experts) => experts.norm.iter().collect(),
            Op::Mlp(_) | Op::ShortConvolution(_) | Op::WithGiven(_) => Vec::new(),
            Op::Sum(parts) => parts.iter().flat_map(Op::norms).collect(),
            Op::Normed(it) => it.pre.iter().chain(it.op.norms()).chain(&it.post).collect(),
        }
    }

    /// Its convolutions.
    pub fn convolutions(&self) -> Vec<&ConvolutionSpec> {
        match self {
            Op::ShortConvolution(it) => vec![&it.convolution],
            Op::Delta(it) => it.convolutions.iter().collect(),
            Op::Mamba(it) => vec![&it.convolution],
            Op::Attention(_)
            | Op::Latent(_)
            | Op::Mlp(_)
            | Op::Experts(_)
            | Op::WithGiven(_)
            | Op::LowRank(_) => Vec::new(),
            Op::Sum(parts) => parts.iter().flat_map(Op::convolutions).collect(),
            Op::Normed(it) => it.op.convolutions(),
        }
    }

    /// Its tensors that belong to no module.
    pub fn parameters(&self) -> Vec<TensorSpec> {
        match self {
            Op::Experts(experts) => {
                let scales = [experts.router_scale(), experts.expert_scale()];
                [experts.correction()].into_iter().chain(scales).flatten().collect()
            }
            Op::ShortConvolution(it) => it.convolution.tensors().collect(),
            Op::Delta(it) => it.parameters().collect(),
            Op::Mamba(it) => it.parameters().collect(),
            Op::Mlp(it) => it.activation_numbers().into_iter().flatten().collect(),
            Op::Attention(it) => it.sinks().into_iter().collect(),
            Op::Latent(_) | Op::WithGiven(_) | Op::LowRank(_) => Vec::new(),
            Op::Sum(parts) => parts.iter().flat_map(Op::parameters).collect(),
            Op::Normed(it) => it.op.parameters(),
        }
    }

    /// What it is the sum of, without norms of their own; itself alone, if it is none.
    pub fn parts(&self) -> Vec<&Op> {
        match self {
            Op::Sum(parts) => parts.iter().flat_map(Op::parts).collect(),
            Op::Normed(it) => vec![&it.op],
            one => vec![one],
        }
    }
}

impl Branch {
    /// `x += post(op(pre(x)))`.
    pub fn new(pre: Option<NormSpec>, op: Op, post: Option<NormSpec>) -> Branch {
        Branch { pre, op, post, multiplier: 1.0, residual: None }
    }
}

impl LayerSpec {
    /// These branches, one after the other.
    pub fn of(branches: Vec<Branch>) -> LayerSpec {
        LayerSpec { branches, scalar: None, streams: None, others: None }
    }

    /// `x += op(norm(x))` for each of these.
    pub fn pre_norm(branches: impl IntoIterator<Item = (NormSpec, Op)>) -> LayerSpec {
        let branch = |(pre, op)| Branch::new(Some(pre), op, None);
        LayerSpec::of(branches.into_iter().map(branch).collect())
    }

    /// A narrower layer of the same kind, to be timed: its operations with a part of their width, `share` of it, whole
    /// groups of heads, one at least, and multiples of `granule`, and without windows or experts that no row goes to.
    #[must_use]
    pub fn narrowed(&self, share: f64, granule: usize) -> LayerSpec {
        self.with_ops(|op| match op {
            Op::Attention(it) => {
                // By itself, as it is timed.
                let (window, segment, keys_of) = (None, None, None);
                Op::Attention(AttentionSpec { window, segment, keys_of, ..it.narrowed(share) })
            }
            Op::Latent(it) => Op::Latent(it.narrowed(share)),
            Op::Delta(it) => Op::Delta(it.narrowed(share)),
            Op::Mamba(it) => Op::Mamba(it.narrowed(share)),
            Op::Mlp(it) => Op::Mlp(it.narrowed(share, granule)),
            Op::Experts(it) => {
                let expert = it.expert.narrowed(share, granule);
                Op::Experts(ExpertsSpec { expert, ..it.active() })
            }
            // As wide as hidden states, or narrow.
            Op::ShortConvolution(_) | Op::WithGiven(_) | Op::LowRank(_) => op.clone(),
            Op::Sum(_) | Op::Normed(_) => unreachable!("its parts are narrowed"),
        })
    }

    /// The layer without the experts that a row does not go to: what a decoded token reads.
    #[must_use]
    pub fn active(&self) -> LayerSpec {
        self.with_ops(|op| match op {
            Op::Experts(it) => Op::Experts(it.active()),
            other => other.clone(),
        })
    }

    pub(super) fn with_ops(&self, op: impl Fn(&Op) -> Op) -> LayerSpec {
        fn changed(whole: &Op, op: &impl Fn(&Op) -> Op) -> Op {
            match whole {
                Op::Sum(parts) => Op::Sum(parts.iter().map(|part| changed(part, op)).collect()),
                Op::Normed(it) => {
                    Op::Normed(Box::new(NormedSpec { op: op(&it.op), ..(**it).clone() }))
                }
                one => op(one),
            }
        }
        let branch = |branch: &Branch| Branch { op: changed(&branch.op, &op), ..branch.clone() };
        let branches = self.branches.iter().map(branch).collect();
        LayerSpec { branches, ..self.clone() }
    }

    /// Bytes of weights that one decoded token reads, if the module at each path, below the layer, is stored in so
    /// many: all of them, but of the experts of a mixture the mean of as many as a row goes to.
    pub fn active_bytes(&self, stored: impl Fn(&str) -> u64) -> u64 {
        let mut paths: Vec<Name> = self.tensors().into_iter().map(|tensor| tensor.path).collect();
        paths.dedup(); // The tensors of a module follow each other.
        let all = paths.iter().map(|path| stored(path)).fold(0, u64::saturating_add);
        let idle = self.ops().map(|op| {
            let Op::Experts(it) = op else { return 0 };
            let experts = paths.iter().filter(|path| path.starts_with(&*it.prefix));
            let bytes = experts.map(|path| stored(path)).fold(0, u64::saturating_add);
            let idle = u128::from(bytes) * (it.count - it.chosen) as u128 / it.count as u128;
            idle as u64 // No more than `bytes`.
        });
        all.saturating_sub(idle.fold(0, u64::saturating_add))
    }

    /// Its tensors, each once.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut there = HashSet::new();
        let is_new = |it: &TensorSpec| there.insert((it.path.clone(), it.kind));
        self.all_tensors().filter(is_new).collect()
    }

    /// Its tensors as its operations name them: one that several of these share is there for each.
    pub(super) fn all_tensors(&self) -> impl Iterator<Item = TensorSpec> {
        let of_branches = self.all_branches().flat_map(|branch| {
            let norms = branch.pre.iter().chain(branch.op.norms()).chain(&branch.post);
            norms
                .flat_map(NormSpec::tensors)
                .chain(branch.op.linears().into_iter().flat_map(LinearSpec::tensors))
                .chain(branch.op.parameters())
        });
        let of_streams = self.streams.iter().flat_map(LayerStreamsSpec::tensors);
        of_branches.chain(of_streams).chain(self.scalar())
    }

    /// What the hidden states are multiplied with in the end.
    pub fn scalar(&self) -> Option<TensorSpec> {
        Some(parameter(self.scalar.as_ref()?, 1))
    }

    /// What it keeps of a sequence.
    pub fn kept(&self) -> Kept {
        let mut kept = Kept::default();
        for op in self.ops() {
            match op {
                Op::Attention(AttentionSpec { keys_of: Some(_), .. }) => {}
                Op::Attention(attention) => {
                    kept.keys += attention.kv_dim();
                    kept.values += attention.kv_dim();
                    kept.groups += 2 * attention.kv_heads * KvDtype::groups(attention.head_dim);
                }
                // Values are made of the same numbers.
                Op::Latent(latent) => {
                    kept.keys += latent.kept_dim();
                    kept.groups += KvDtype::groups(latent.kept_dim());
                }
                Op::ShortConvolution(it) => kept.state += it.convolution.state(),
                Op::Delta(it) => kept.state += it.state(),
                Op::Mamba(it) => kept.state += it.state(),
                Op::Mlp(_)
                | Op::Experts(_)
                | Op::WithGiven(_)
                | Op::LowRank(_)
                | Op::Sum(_)
                | Op::Normed(_) => {}
            }
        }
        kept
    }

    /// The layer whose keys and values it attends to, if it makes none of its own; of several the earliest.
    pub fn keys_of(&self) -> Option<usize> {
        let of = |op: &Op| if let Op::Attention(it) = op { it.keys_of } else { None };
        self.ops().filter_map(of).min()
    }

    /// Its operations; of sums, what they are the sums of.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.all_branches().flat_map(|branch| branch.op.parts())
    }

    /// Its branches, also the one that is added to other streams.
    pub fn all_branches(&self) -> impl Iterator<Item = &Branch> {
        self.branches.iter().chain(&self.others)
    }
}
