//! Several streams of hidden states between layers (AltUp, arXiv:2301.13310): each layer predicts all of them, computes with
//! one, and corrects them all by what came of that.

use serde::{Deserialize, Serialize};

use super::spec::{LinearSpec, Name, NormSpec, TensorSpec, linear, parameter};

/// The streams of a model, each as wide as hidden states are, one behind the other in a row. The first is the embedding, each
/// other one a product of it that is as long; after the last layer the mean is taken of the first and of products of the
/// others that are as long as the first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamsSpec {
    /// Modules `[hidden_size, hidden_size]` that make each stream but the first.
    pub begin: Vec<Name>,
    /// As many modules of the same shape that they end in.
    pub end: Vec<Name>,
}

/// What a layer does with several streams `s`, where `m(x)` is `tanh(router(norm(x) · router_multiplier))`, and `a` the active
/// one: it predicts `p[j] = s[j] + Σᵢ C[j, i] · s[i]` with `C = prediction(m(s[a]))`, makes `y` of `p[a]` by its branches,
/// corrects `s[j] = p[j] + (1 + c[j]) · (y − p[a])` with `c = correction(m(y))`, and adds what a branch of its own makes
/// of `scale · s[a]` to all streams but the first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerStreamsSpec {
    /// How many there are.
    pub count: usize,
    /// The active one.
    pub active: usize,
    /// The norm before the router.
    pub norm: NormSpec,
    /// What its result is multiplied with.
    pub router_multiplier: f32,
    /// Module of the router, `[count, hidden_size]`.
    pub router: Name,
    /// Module of what streams are predicted with, `[count × count, count]`.
    pub prediction: Name,
    /// Module of what they are corrected with, `[count, count]`.
    pub correction: Name,
    /// Name of what each number of the active one is multiplied with before that branch, `[hidden_size]`.
    pub scale: Name,
}

impl StreamsSpec {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.begin.len() + 1
    }

    /// What makes each but the first.
    pub fn begin(&self, hidden_size: usize) -> impl Iterator<Item = LinearSpec> {
        self.begin.iter().map(move |module| linear(module, hidden_size, hidden_size, false))
    }

    /// What each but the first ends in.
    pub fn end(&self, hidden_size: usize) -> impl Iterator<Item = LinearSpec> {
        self.end.iter().map(move |module| linear(module, hidden_size, hidden_size, false))
    }

    /// Its tensors, by whole names.
    pub(super) fn tensors(&self, hidden_size: usize) -> impl Iterator<Item = TensorSpec> {
        self.begin(hidden_size).chain(self.end(hidden_size)).flat_map(LinearSpec::tensors)
    }
}

impl LayerStreamsSpec {
    /// The router.
    pub fn router(&self) -> LinearSpec {
        linear(&self.router, self.count, self.norm.width, false)
    }

    /// What streams are predicted with.
    pub fn prediction(&self) -> LinearSpec {
        linear(&self.prediction, self.count * self.count, self.count, false)
    }

    /// What they are corrected with.
    pub fn correction(&self) -> LinearSpec {
        linear(&self.correction, self.count, self.count, false)
    }

    /// What the active one is multiplied with.
    pub fn scale(&self) -> TensorSpec {
        parameter(&self.scale, self.norm.width as u64)
    }

    /// Its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = TensorSpec> {
        let linears = [self.router(), self.prediction(), self.correction()];
        let linears = linears.into_iter().flat_map(LinearSpec::tensors);
        linears.chain(self.norm.tensors()).chain([self.scale()])
    }
}
