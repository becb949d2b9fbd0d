//! Recurrent operations: what they keep of a sequence has one size, however long it is.

use serde::{Deserialize, Serialize};

use super::network::Activation;
use super::parts::{
    Joined, LinearSpec, Name, NormSpec, TensorKind, TensorSpec, is_default, linear, parameter,
};

/// A causal depthwise convolution: each channel of a row is a sum over that channel of this row and of those before it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionSpec {
    /// Channels.
    pub channels: usize,
    /// Rows that a sum is over.
    pub taps: usize,
    /// Name of the tensor `[channels, 1, taps]`, below the layer; the last tap meets the row itself.
    pub weight: Name,
    /// Whether that is `[channels, taps, 1]`, as MLX has it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub taps_first: bool,
    /// Name of a tensor `[channels]`, which is added.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bias: Option<Name>,
}

/// A gated short convolution (`Lfm2ShortConv` in Hugging Face transformers): `output(c · convolution(b · x))`, where `b`,
/// `c` and `x` are thirds of `input`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConvolutionSpec {
    /// Width of what comes in and goes out, and of each third.
    pub hidden_size: usize,
    /// Module of a matrix `[3 × hidden_size, hidden_size]`: the rows of `b`, `c` and `x`.
    pub input: Name,
    /// The convolution.
    pub convolution: ConvolutionSpec,
    /// Module of the output projection.
    pub output: Name,
    /// Whether both projections have biases.
    pub bias: bool,
}

/// The gated delta rule (arXiv:2412.06464): of each head a matrix that maps keys to values, of which every position
/// forgets a part and then corrects what it says of the position's key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of these: each has a matrix.
    pub value_heads: usize,
    /// Numbers of a key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
    /// What queries, keys, values, gates and rates are made of.
    pub inputs: DeltaInputs,
    /// The convolutions of queries, keys and values, or one of all of them.
    pub convolutions: Vec<ConvolutionSpec>,
    /// Whether consecutive heads of values have the keys in turn, as GGUF files of Qwen3.5 have them; else they share one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keys_in_turn: bool,
    /// Name of the tensor of how fast heads forget, as logarithms, below the layer: one number for each.
    pub rate: Name,
    /// Whether that has them with a minus instead, as GGUF files do.
    #[serde(default, skip_serializing_if = "is_default")]
    pub negative_rate: bool,
    /// Name of the tensor `[numbers that forget]`, which is added to what the input says of it.
    pub bias: Name,
    /// The norm of each head of what comes out, before the gate.
    pub norm: NormSpec,
    /// What a gate goes through.
    pub gate: Activation,
    /// Module of the output projection, `[hidden_size, value_heads × value_dim]`.
    pub output: Name,
}

/// What the parts of a delta rule are made of: modules, below the layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DeltaInputs {
    /// Queries, keys and values behind each other in one; heads forget as a whole.
    Joined {
        /// Queries, keys and values.
        qkv: Name,
        /// Gates, as wide as values.
        gate: Name,
        /// How much is corrected, of each head of values.
        correction: Name,
        /// How much is forgotten, of each of these.
        decay: Name,
    },
    /// The same by heads of keys: each has its query, its key, its values and their gates behind each other.
    ByHead {
        /// Queries, keys, values and gates.
        qkv_gate: Name,
        /// How much is corrected and forgotten.
        correction_decay: Name,
    },
    /// As [`Joined`](DeltaInputs::Joined), but for what is corrected and forgotten, which is by heads of keys: GGUF files of
    /// Qwen3-Next have it so.
    RatesByHead {
        /// Queries, keys and values.
        qkv: Name,
        /// Gates, as wide as values.
        gate: Name,
        /// How much is corrected and forgotten.
        correction_decay: Name,
    },
    /// Each by itself (arXiv:2510.26692); each number of a key is forgotten by itself, too.
    Separate {
        /// Queries, keys and values.
        qkv: [Name; 3],
        /// Gates: two matrices, one behind the other, between which there are as many numbers as a key has.
        gate: [Name; 2],
        /// How much is corrected, of each head.
        correction: Name,
        /// How much is forgotten: two matrices as those of gates.
        decay: [Name; 2],
    },
}

/// A selective state space (Mamba 2, arXiv:2405.21060): of each head a matrix `[head_dim, state_dim]`, of which every
/// position forgets a part before it adds its own.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MambaSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Heads.
    pub heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// What heads add and read by is shared by groups of them; divides `heads`.
    pub groups: usize,
    /// Numbers that each number of a head is kept in.
    pub state_dim: usize,
    /// Module of the input projection: the rows of gates, of numbers, of what they are added and read by, and of steps.
    pub input: Name,
    /// Whether it has a bias.
    #[serde(default, skip_serializing_if = "is_default")]
    pub input_bias: bool,
    /// What these five are multiplied with, in this order.
    #[serde(default, skip_serializing_if = "is_default")]
    pub multipliers: Option<[f32; 5]>,
    /// The convolution of numbers and of what they are added and read by.
    pub convolution: ConvolutionSpec,
    /// Name of the tensor `[heads]` of how fast they forget, as logarithms.
    pub rate: Name,
    /// Name of the tensor `[heads]` that is added to steps.
    pub bias: Name,
    /// Name of the tensor `[heads]` of how much of the numbers themselves comes out.
    pub skip: Name,
    /// The norm of what comes out, of each of `norm_groups` parts of it.
    pub norm: Option<NormSpec>,
    /// Parts that are normalised by themselves.
    pub norm_groups: usize,
    /// Whether the norm comes before the gate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm_before_gate: bool,
    /// Module of the output projection.
    pub output: Name,
    /// Whether it has a bias.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_bias: bool,
}

impl ConvolutionSpec {
    /// Its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorSpec> {
        [self.weight()].into_iter().chain(self.bias())
    }

    /// Its weight.
    pub fn weight(&self) -> TensorSpec {
        let (path, kind) = (self.weight.clone(), TensorKind::Parameter);
        let (channels, taps) = (self.channels as u64, self.taps as u64);
        let shape = if self.taps_first { [channels, taps, 1] } else { [channels, 1, taps] };
        TensorSpec { path, kind, shape: shape.into() }
    }

    /// What it adds.
    pub fn bias(&self) -> Option<TensorSpec> {
        Some(parameter(self.bias.as_ref()?, self.channels as u64))
    }

    /// Numbers that it keeps: the rows before the next one.
    pub fn state(&self) -> usize {
        self.channels * (self.taps - 1)
    }
}

impl ShortConvolutionSpec {
    /// The projections to `b`, `c` and `x`, each of which is as wide as what comes in.
    pub fn input(&self) -> [LinearSpec; 3] {
        let width = self.hidden_size;
        Joined::Fused(self.input.clone()).linears([width; 3], width, self.bias)
    }

    /// The output projection.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.hidden_size, self.bias)
    }

    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.input().into_iter().chain([self.output()])
    }
}

impl DeltaSpec {
    /// Width of the queries, and of the keys, of one position.
    pub fn keys_dim(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of the values of one position, and of their gates.
    pub fn values_dim(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Heads of values that share a key.
    pub fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Numbers that forget: heads, or all numbers of their keys.
    pub fn decays(&self) -> usize {
        match self.inputs {
            DeltaInputs::Joined { .. }
            | DeltaInputs::ByHead { .. }
            | DeltaInputs::RatesByHead { .. } => self.value_heads,
            DeltaInputs::Separate { .. } => self.value_heads * self.key_dim,
        }
    }

    /// The linear layers that its parts are made by, in the order of [`DeltaInputs`].
    pub fn inputs(&self) -> Vec<LinearSpec> {
        let (keys, values, heads) = (self.keys_dim(), self.values_dim(), self.value_heads);
        let of_hidden = |path, outputs| linear(path, outputs, self.hidden_size, false);
        match &self.inputs {
            DeltaInputs::Joined { qkv, gate, correction, decay } => vec![
                of_hidden(qkv, 2 * keys + values),
                of_hidden(gate, values),
                of_hidden(correction, heads),
                of_hidden(decay, heads),
            ],
            DeltaInputs::ByHead { qkv_gate, correction_decay } => vec![
                of_hidden(qkv_gate, 2 * keys + 2 * values),
                of_hidden(correction_decay, 2 * heads),
            ],
            DeltaInputs::RatesByHead { qkv, gate, correction_decay } => vec![
                of_hidden(qkv, 2 * keys + values),
                of_hidden(gate, values),
                of_hidden(correction_decay, 2 * heads),
            ],
            DeltaInputs::Separate { qkv: [q, k, v], gate, correction, decay } => {
                let behind = |path, outputs| linear(path, outputs, self.key_dim, false);
                vec![
                    of_hidden(q, keys),
                    of_hidden(k, keys),
                    of_hidden(v, values),
                    of_hidden(correction, heads),
                    of_hidden(&gate[0], self.key_dim),
                    of_hidden(&decay[0], self.key_dim),
                    behind(&gate[1], values),
                    behind(&decay[1], self.decays()),
                ]
            }
        }
    }

    /// The output projection.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.values_dim(), false)
    }

    /// How fast heads forget, as [`negative_rate`](DeltaSpec::negative_rate) says.
    pub fn rate(&self) -> TensorSpec {
        parameter(&self.rate, self.value_heads as u64)
    }

    /// What is added to how much is forgotten.
    pub fn bias(&self) -> TensorSpec {
        parameter(&self.bias, self.decays() as u64)
    }

    /// The same with a part of its heads: `share` of them, those that share a key together, one such group at least.
    #[must_use]
    pub fn narrowed(&self, share: f64) -> Self {
        let key_heads = ((self.key_heads as f64 * share) as usize).max(1);
        let value_heads = key_heads * self.group();
        let mut narrowed = Self { key_heads, value_heads, ..self.clone() };
        let (keys, values) = (narrowed.keys_dim(), narrowed.values_dim());
        let channels = match narrowed.convolutions.len() {
            1 => vec![2 * keys + values],
            _ => vec![keys, keys, values],
        };
        for (convolution, channels) in narrowed.convolutions.iter_mut().zip(channels) {
            convolution.channels = channels;
        }
        narrowed
    }

    /// Numbers of the matrices of all heads.
    pub fn matrices(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Numbers that are kept of a sequence.
    pub(super) fn state(&self) -> usize {
        self.convolutions.iter().map(ConvolutionSpec::state).sum::<usize>() + self.matrices()
    }

    pub(super) fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.inputs().into_iter().chain([self.output()])
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = TensorSpec> {
        let convolutions = self.convolutions.iter().flat_map(ConvolutionSpec::tensors);
        convolutions.chain([self.rate(), self.bias()])
    }
}

impl MambaSpec {
    /// Width of the numbers of all heads.
    pub fn inner_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of what numbers are added by, and of what they are read by.
    pub fn groups_dim(&self) -> usize {
        self.groups * self.state_dim
    }

    /// The projections to gates, to what the convolution takes (numbers, and what they are added by and read by), and to
    /// steps.
    pub fn inputs(&self) -> [LinearSpec; 3] {
        let (inner, groups) = (self.inner_dim(), self.groups_dim());
        let outputs = [inner, inner + 2 * groups, self.heads];
        Joined::Fused(self.input.clone()).linears(outputs, self.hidden_size, self.input_bias)
    }

    /// The output projection.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.inner_dim(), self.output_bias)
    }

    /// How fast heads forget, as logarithms.
    pub fn rate(&self) -> TensorSpec {
        parameter(&self.rate, self.heads as u64)
    }

    /// What is added to steps.
    pub fn bias(&self) -> TensorSpec {
        parameter(&self.bias, self.heads as u64)
    }

    /// How much of the numbers themselves comes out.
    pub fn skip(&self) -> TensorSpec {
        parameter(&self.skip, self.heads as u64)
    }

    /// The same with a part of its heads: `share` of each group's, one at least.
    #[must_use]
    pub fn narrowed(&self, share: f64) -> Self {
        let of_group = ((self.heads / self.groups) as f64 * share) as usize;
        let mut narrowed = Self { heads: of_group.max(1) * self.groups, ..self.clone() };
        narrowed.convolution.channels = narrowed.inner_dim() + 2 * narrowed.groups_dim();
        let width = narrowed.inner_dim();
        if let Some(norm) = &mut narrowed.norm {
            norm.width = width;
        }
        narrowed
    }

    /// Numbers of the matrices of all heads.
    pub fn matrices(&self) -> usize {
        self.inner_dim() * self.state_dim
    }

    /// Numbers that are kept of a sequence.
    pub(super) fn state(&self) -> usize {
        self.convolution.state() + self.matrices()
    }

    pub(super) fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.inputs().into_iter().chain([self.output()])
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = TensorSpec> {
        self.convolution.tensors().chain([self.rate(), self.bias(), self.skip()])
    }
}
