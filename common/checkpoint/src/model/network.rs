//! Feed-forward networks.

use serde::{Deserialize, Serialize};

use super::parts::{Joined, LinearSpec, Name, NormSpec, TensorSpec, is_default, linear, parameter};

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlpSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Width inside.
    pub inner_size: usize,
    /// What goes into `down`.
    pub gate_up: GateUp,
    /// Module of down.
    pub down: Name,
    /// Whether all of them have biases.
    pub bias: bool,
    /// Of the gate, or of up where there is none.
    pub activation: Activation,
    /// What precedes the names of the numbers that the activation has, if it has such.
    #[serde(default, skip_serializing_if = "is_default")]
    pub activation_numbers: Option<Name>,
    /// Of gates only what is above a bound goes into it: so many standard deviations above the mean of a row's; the bound is
    /// subtracted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gate_cutoff: Option<f32>,
    /// What the gate is multiplied with before that, if anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gate_multiplier: Option<f32>,
    /// What is made of gate and up instead of `activation(gate) · up`, if anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub clamped: Option<ClampedGate>,
    /// Module of a matrix `[1, hidden_size]`: the result is multiplied with the sigmoid of its product with the input.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_gate: Option<Name>,
}

/// `x + norm(second(first(x)))`, with few numbers between the two (LAuReL, arXiv:2411.07501).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LowRankSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Width between the projections.
    pub rank: usize,
    /// Module of the first.
    pub first: Name,
    /// Module of the second.
    pub second: Name,
    /// The norm.
    pub norm: NormSpec,
}

impl LowRankSpec {
    /// Both projections.
    pub fn linears(&self) -> [LinearSpec; 2] {
        [
            linear(&self.first, self.rank, self.hidden_size, false),
            linear(&self.second, self.hidden_size, self.rank, false),
        ]
    }
}

/// What goes into the last projection of a feed-forward network.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GateUp {
    /// The product of gate and up: their modules.
    Gated(Joined<2>),
    /// Up alone: its module.
    Plain(Name),
}

/// `g / (1 + e^(−alpha · g)) · (u + 1)` of a gate `g`, at most `limit`, and up `u`, between `−limit` and `limit`
/// (`GptOssExperts` in Hugging Face transformers).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClampedGate {
    /// What the gate is multiplied with in the exponent.
    pub alpha: f32,
    /// What bounds gate and up.
    pub limit: f32,
}

/// A function of each number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Activation {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `x / (1 + e⁻²ᶻ)` with `z = √(2/π) · (x + 0.044715 x³)`: GELU by way of the hyperbolic tangent (arXiv:1606.08415).
    GeluTanh,
    /// `max(x, 0)²` (arXiv:2109.08668).
    Relu2,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `p x² + b x` where `x` is positive, else `n (e^min(x, ε) − 1 − x) + b x`, with `p`, `n`, `b` and `ε` of numbers of the
    /// network's own (xIELU, arXiv:2411.13010).
    Xielu,
}

impl MlpSpec {
    /// The projections that the last one's input is made of: gate and up, or up alone.
    pub fn gate_up(&self) -> Vec<LinearSpec> {
        let (inner, hidden, bias) = (self.inner_size, self.hidden_size, self.bias);
        match &self.gate_up {
            GateUp::Gated(modules) => modules.linears([inner; 2], hidden, bias).into(),
            GateUp::Plain(module) => vec![linear(module, inner, hidden, bias)],
        }
    }

    /// The last projection.
    pub fn down(&self) -> LinearSpec {
        linear(&self.down, self.hidden_size, self.inner_size, self.bias)
    }

    /// The numbers of the activation, one each: what `p` and `n` are made of, `b` and `ε`.
    pub fn activation_numbers(&self) -> Option<[TensorSpec; 4]> {
        let prefix = self.activation_numbers.as_ref()?;
        let names = ["alpha_p", "alpha_n", "beta", "eps"];
        Some(names.map(|name| parameter(&Name::Owned(format!("{prefix}{name}")), 1)))
    }

    /// The layer whose product's sigmoid multiplies the result, if any does.
    pub fn output_gate(&self) -> Option<LinearSpec> {
        let module = self.output_gate.as_ref()?;
        Some(linear(module, 1, self.hidden_size, false))
    }

    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.gate_up().into_iter().chain([self.down()]).chain(self.output_gate())
    }

    /// The same with a part of its width inside: `share` of it, rounded up to a multiple of `granule`.
    #[must_use]
    pub fn narrowed(&self, share: f64, granule: usize) -> Self {
        let inner_size = ((self.inner_size as f64 * share) as usize).max(1);
        Self { inner_size: inner_size.next_multiple_of(granule), ..self.clone() }
    }
}
