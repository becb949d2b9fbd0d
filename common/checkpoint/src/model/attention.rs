//! Attention of heads: what it is made of, and its parts.

use serde::{Deserialize, Serialize};

use super::parts::{Joined, LinearSpec, Name, NormSpec, TensorSpec, is_default, linear, parameter};

/// Grouped-query attention (arXiv:2305.13245) with rotary position embedding (arXiv:2104.09864).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; `heads × head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Modules of queries, keys and values.
    pub qkv: Joined<3>,
    /// Whether these have biases.
    pub qkv_bias: bool,
    /// Module of the output projection.
    pub output: Name,
    /// Whether it has a bias.
    pub output_bias: bool,
    /// Norms of queries and keys, over each head or over all of them.
    pub qk_norm: Option<[NormSpec; 2]>,
    /// Whether these come after the rotation.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qk_norm_after_rotation: bool,
    /// Epsilon of a norm over each head of queries and keys after the rotation, which has no weight.
    #[serde(default, skip_serializing_if = "is_default")]
    pub turned_norm: Option<f64>,
    /// Epsilon of a norm over each head of the values, which has no weight.
    #[serde(default, skip_serializing_if = "is_default")]
    pub value_norm: Option<f64>,
    /// What multiplies what heads attend to, if anything does.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_gate: Option<OutputGate>,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    /// What bounds these: `softcap · tanh(score / softcap)`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub softcap: Option<f64>,
    /// What queries are multiplied with, by their position.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query_scale: Option<PositionScale>,
    /// Name of a tensor `[heads]`, below the layer: of each head a score beside those of its positions, which takes a part of
    /// the softmax and has no value (arXiv:2309.17453).
    #[serde(default, skip_serializing_if = "is_default")]
    pub sinks: Option<Name>,
    /// Positions that a row sees, its own included; `None` for all.
    pub window: Option<usize>,
    /// Positions in a segment, the first of which begins at 0, if a row sees none of earlier segments.
    #[serde(default, skip_serializing_if = "is_default")]
    pub segment: Option<usize>,
    /// Which of the model's rotations turns queries and keys; `None` for layers that know no positions (NoPE,
    /// arXiv:2305.19466).
    pub rotation: Option<usize>,
    /// The earlier layer whose keys and values it attends to, if it makes none: modules and norm of its own are not used.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keys_of: Option<usize>,
}

/// What multiplies what a head attends to (arXiv:2505.06708).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OutputGate {
    /// The sigmoid of what the queries' module has behind each head's query, as wide.
    WithQueries,
    /// `ln(1 + eˣ)` of a product of the input with a matrix of its own.
    Softplus {
        /// Its module.
        module: Name,
        /// Whether there is one for each number of a head, and not one for each head.
        each_number: bool,
    },
}

/// A factor that grows with the position: `1 + beta · ln(1 + ⌊(position + first) / span⌋)` (`get_llama_4_attn_scale` in Hugging
/// Face transformers, after arXiv:2501.19399).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionScale {
    /// How fast it grows.
    pub beta: f64,
    /// So many positions from the first on have the factor 1.
    pub span: f64,
    /// The number of the first position: 0, or 1 where they are counted from one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first: usize,
}

impl AttentionSpec {
    /// Width of the queries of one position.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the keys (and of the values) of one position.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The projections of queries (with their gates, if there are such), and of keys and values, unless these are another
    /// layer's.
    pub fn qkv(&self) -> Vec<LinearSpec> {
        let own = if self.keys_of.is_some() { 1 } else { 3 };
        self.all_projections().into_iter().take(own).collect()
    }

    /// The norms of queries and of keys, as far as it has them.
    pub fn qk_norms(&self) -> impl Iterator<Item = &NormSpec> {
        let own = if self.keys_of.is_some() { 1 } else { 2 };
        self.qk_norm.iter().flat_map(move |norms| &norms[..own])
    }

    /// Modules of keys and values that another layer's stand for.
    pub fn unused(&self) -> impl Iterator<Item = Name> {
        let projections = self.all_projections().into_iter().skip(1).map(|linear| linear.path);
        let norms = self.qk_norm.iter().map(|[_, keys]| keys.path.clone());
        projections.chain(norms).filter(|_| self.keys_of.is_some())
    }

    fn all_projections(&self) -> [LinearSpec; 3] {
        let gates = usize::from(self.output_gate == Some(OutputGate::WithQueries));
        let queries = self.q_dim() * (1 + gates);
        let outputs = [queries, self.kv_dim(), self.kv_dim()];
        self.qkv.linears(outputs, self.hidden_size, self.qkv_bias)
    }

    /// The projection to gates that are not the queries'.
    pub fn gate(&self) -> Option<LinearSpec> {
        let Some(OutputGate::Softplus { module, each_number }) = &self.output_gate else {
            return None;
        };
        let gates = if *each_number { self.q_dim() } else { self.heads };
        Some(linear(module, gates, self.hidden_size, false))
    }

    /// The scores beside those of positions.
    pub fn sinks(&self) -> Option<TensorSpec> {
        Some(parameter(self.sinks.as_ref()?, self.heads as u64))
    }

    /// The projection of the weighted values.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.q_dim(), self.output_bias)
    }

    /// The same with a part of its heads: `share` of them, one group at least.
    #[must_use]
    pub fn narrowed(&self, share: f64) -> Self {
        let group = self.heads / self.kv_heads;
        let kv_heads = ((self.kv_heads as f64 * share) as usize).max(1);
        let mut narrowed = Self { heads: kv_heads * group, kv_heads, ..self.clone() };
        let widths = [(self.q_dim(), narrowed.q_dim()), (self.kv_dim(), narrowed.kv_dim())];
        for (norm, (all, fewer)) in narrowed.qk_norm.iter_mut().flatten().zip(widths) {
            // One over each head stays.
            if norm.width == all && all != self.head_dim {
                norm.width = fewer;
            }
        }
        narrowed
    }
}

impl PositionScale {
    /// The factor of a position.
    pub fn at(&self, position: usize) -> f32 {
        let spans = ((position as f64 + self.first as f64) / self.span).floor();
        (1.0 + self.beta * (1.0 + spans).ln()) as f32
    }
}
