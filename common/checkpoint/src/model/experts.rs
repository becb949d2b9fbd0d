//! Mixtures of experts, and the routers that choose among them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::network::{GateUp, MlpSpec};
use super::parts::{
    Joined, LinearSpec, Name, NormSpec, TensorKind, TensorSpec, is_default, linear, parameter,
};

/// A mixture of experts (arXiv:1701.06538): a router chooses some of many gated networks for each row, and the row's
/// result is the sum of theirs, each times the weight that the router gives it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// What chooses experts.
    pub router: RouterSpec,
    /// What rows go through before the experts, and not before the router.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: Option<NormSpec>,
    /// How many experts there are.
    pub count: usize,
    /// How many of them a row goes to; at most `count`.
    pub chosen: usize,
    /// What precedes the number of an expert in the names of its modules.
    pub prefix: Name,
    /// One expert, its modules below the expert.
    pub expert: MlpSpec,
    /// The projections around them, if they compute with rows of another width than hidden states have (LatentMoE).
    #[serde(default, skip_serializing_if = "is_default")]
    pub projections: Option<ExpertProjectionsSpec>,
    /// Which of them are here; `None` for all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slice: Option<ExpertRange>,
}

/// Projections around experts that compute with rows of their own width, no more than hidden states have: a row's result is
/// `output` of the sum of what its experts make of `input(x)`. The router sees `x` (LatentMoE: `NemotronHMoE` in Hugging Face
/// transformers).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertProjectionsSpec {
    /// Width of what comes in and goes out; at least that of the experts.
    pub hidden_size: usize,
    /// Module of the projection to the experts' width, below the layer.
    pub input: Name,
    /// Module of the one back.
    pub output: Name,
}

/// Some of a mixture's experts, as their numbers follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertRange {
    /// The first one.
    pub start: usize,
    /// The first one that is not of them.
    pub end: usize,
}

/// What chooses experts for a row: a function of the products of the row with a matrix `[count, hidden_size]`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSpec {
    /// The matrix's module, below the layer.
    pub path: Name,
    /// Whether it has a bias.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bias: bool,
    /// What rows go through before it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub norm: Option<RouterNorm>,
    /// What becomes of the products: the experts' scores, of which the largest are chosen.
    pub scores: RouterScores,
    /// What is added to the scores where experts are chosen, and not where they are weighted (arXiv:2408.15664).
    #[serde(default, skip_serializing_if = "is_default")]
    pub correction: Option<CorrectionSpec>,
    /// The groups of which some are chosen first.
    #[serde(default, skip_serializing_if = "is_default")]
    pub groups: Option<RouterGroups>,
    /// Whether the chosen scores are divided by their sum, or by this if that is less.
    pub renormalise: Option<f32>,
    /// What the weights are multiplied with then.
    pub multiplier: f32,
    /// Whether they multiply what experts get, and not what these make of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub weighs_inputs: bool,
    /// Name of a tensor `[count]`, below the layer: what each expert's weight is multiplied with.
    #[serde(default, skip_serializing_if = "is_default")]
    pub expert_scale: Option<Name>,
}

/// A norm (RMS) before a router: its weight is a tensor by itself, times a factor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterNorm {
    /// Name of the tensor `[hidden_size]`, below the layer.
    pub scale: Name,
    /// What it is multiplied with.
    pub factor: f64,
    /// Added to the mean square.
    pub eps: f64,
}

/// How a router's products become scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RouterScores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// The softmax over those that are chosen, which are those with the largest products,
    SoftmaxOfChosen,
    /// and the sigmoid of each of these.
    SigmoidOfChosen,
}

/// A number for each expert, stored by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorrectionSpec {
    /// The tensor's name below the layer, all of it.
    pub name: Name,
    /// How many axes it has; all but the last are 1.
    pub axes: usize,
}

/// Experts in groups of equal size, as their numbers follow each other. A group's score is the sum of its two best experts'
/// (arXiv:2412.19437).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterGroups {
    /// How many there are.
    pub count: usize,
    /// How many of them experts are chosen of.
    pub chosen: usize,
}

impl RouterScores {
    /// Whether experts are chosen by the products themselves, and scores are made of theirs alone.
    pub fn are_of_chosen(self) -> bool {
        matches!(self, RouterScores::SoftmaxOfChosen | RouterScores::SigmoidOfChosen)
    }
}

impl ExpertsSpec {
    /// The experts that are here: all, unless the layer is parted.
    pub fn here(&self) -> Range<usize> {
        self.slice.map_or(0..self.count, |slice| slice.start..slice.end)
    }

    /// Whether later experts are elsewhere, so that what these make is no result yet.
    pub fn is_partial(&self) -> bool {
        self.here().end < self.count
    }

    /// Width of what comes in and goes out.
    pub fn hidden_size(&self) -> usize {
        self.projections.as_ref().map_or(self.expert.hidden_size, |around| around.hidden_size)
    }

    /// The router's matrix.
    pub fn router(&self) -> LinearSpec {
        linear(&self.router.path, self.count, self.hidden_size(), self.router.bias)
    }

    /// The projection to the experts' width, if they have another one.
    pub fn input(&self) -> Option<LinearSpec> {
        let ExpertProjectionsSpec { hidden_size, input, .. } = self.projections.as_ref()?;
        Some(linear(input, self.expert.hidden_size, *hidden_size, false))
    }

    /// The projection of the experts' sum, if they have another width: where the last of them are.
    pub fn output(&self) -> Option<LinearSpec> {
        let around = self.projections.as_ref().filter(|_| !self.is_partial())?;
        let ExpertProjectionsSpec { hidden_size, output, .. } = around;
        Some(linear(output, *hidden_size, self.expert.hidden_size, false))
    }

    /// The expert of this number, its modules below the layer.
    pub fn expert(&self, index: usize) -> MlpSpec {
        let named = |path: &Name| Name::Owned(format!("{}{index}.{path}", self.prefix));
        let gate_up = match &self.expert.gate_up {
            GateUp::Gated(Joined::Separate(paths)) => {
                GateUp::Gated(Joined::Separate(std::array::from_fn(|it| named(&paths[it]))))
            }
            GateUp::Gated(Joined::Fused(path)) => GateUp::Gated(Joined::Fused(named(path))),
            GateUp::Plain(path) => GateUp::Plain(named(path)),
        };
        let output_gate = self.expert.output_gate.as_ref().map(named);
        MlpSpec { gate_up, down: named(&self.expert.down), output_gate, ..self.expert.clone() }
    }

    /// The mixture of only as many experts as a row goes to: what a decoded token reads.
    #[must_use]
    pub fn active(&self) -> Self {
        let router = RouterSpec { groups: None, ..self.router.clone() };
        Self { router, count: self.chosen, slice: None, ..self.clone() }
    }

    /// The tensors that have a number of each expert: the router's bias, and what changes its scores.
    pub(super) fn choosing_tensors(&self) -> Vec<TensorSpec> {
        let bias = self.router().tensors().filter(|tensor| tensor.kind == TensorKind::Bias);
        let scales = [self.expert_scale(), self.router_scale()];
        bias.chain(self.correction()).chain(scales.into_iter().flatten()).collect()
    }

    /// The weight of the norm before the router.
    pub fn router_scale(&self) -> Option<TensorSpec> {
        let width = self.hidden_size() as u64;
        Some(parameter(&self.router.norm.as_ref()?.scale, width))
    }

    /// What each expert's weight is multiplied with.
    pub fn expert_scale(&self) -> Option<TensorSpec> {
        Some(parameter(self.router.expert_scale.as_ref()?, self.count as u64))
    }

    /// What is added to scores where experts are chosen.
    pub fn correction(&self) -> Option<TensorSpec> {
        let CorrectionSpec { name, axes } = self.router.correction.as_ref()?;
        let mut shape = vec![1; axes.saturating_sub(1)];
        shape.push(self.count as u64);
        Some(TensorSpec { path: name.clone(), kind: TensorKind::Parameter, shape })
    }
}
