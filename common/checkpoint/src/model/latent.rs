//! Multi-head latent attention: what is kept of a position is one short vector for all heads.

use serde::{Deserialize, Serialize};

use super::parts::{LinearSpec, Name, NormSpec, is_default, linear};

/// Multi-head latent attention (arXiv:2405.04434): keys and values of all heads are products with one short vector of a
/// position, its latent. That alone is kept, and beside it the part of a key that rotates, which all heads share.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentSpec {
    /// Width of what comes in and goes out.
    pub hidden_size: usize,
    /// Heads.
    pub heads: usize,
    /// Numbers of a head's query that meet what is made of the latent (`qk_nope_head_dim`).
    pub plain_dim: usize,
    /// Numbers behind these that rotate and meet the part of a key that rotates (`qk_rope_head_dim`).
    pub rotary_dim: usize,
    /// Numbers of a head's value.
    pub value_dim: usize,
    /// Numbers of a latent (`kv_lora_rank`).
    pub rank: usize,
    /// What queries are made of.
    pub queries: LatentQueries,
    /// Module of a matrix `[rank + rotary_dim, hidden_size]`: the latent, and behind it the part of the key that rotates.
    pub down: Name,
    /// Whether it has a bias.
    pub down_bias: bool,
    /// The latent's norm.
    pub norm: NormSpec,
    /// Module of a matrix `[heads × (plain_dim + value_dim), rank]`: of each head the rows of its keys, then of its values.
    /// Where keys have a module, of values alone: `[heads × value_dim, rank]`.
    pub up: Name,
    /// Module of what makes keys, where it is by itself: `[heads × rank, plain_dim]`, each head's turned.
    #[serde(default, skip_serializing_if = "is_default")]
    pub keys: Option<Name>,
    /// Module of the output projection.
    pub output: Name,
    /// Whether it has a bias.
    pub output_bias: bool,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    /// Which of the model's rotations turns queries and keys; `None` for layers that know no positions.
    pub rotation: Option<usize>,
}

/// What the queries of latent attention are made of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LatentQueries {
    /// The input: the module of a matrix `[heads × (plain_dim + rotary_dim), hidden_size]`.
    Whole(Name),
    /// A short vector of their own.
    Short {
        /// Module that makes it of the input, `[width of the norm, hidden_size]`.
        down: Name,
        /// Whether that has a bias.
        bias: bool,
        /// Its norm.
        norm: NormSpec,
        /// Module that makes queries of it, `[heads × (plain_dim + rotary_dim), width of the norm]`.
        up: Name,
    },
}

/// What makes keys of latents, of one head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LatentKeys {
    /// A row for each number of a key, `[plain_dim, rank]`.
    Rows(LinearSpec),
    /// The same turned, `[rank, plain_dim]`: what queries are multiplied with to meet latents.
    Turned(LinearSpec),
}

impl LatentSpec {
    /// Width of the queries of one position.
    pub fn q_dim(&self) -> usize {
        self.heads * self.query_dim()
    }

    /// Width of one head's query.
    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rotary_dim
    }

    /// Numbers that are kept of a position: its latent, and the part of its key that rotates.
    pub fn kept_dim(&self) -> usize {
        self.rank + self.rotary_dim
    }

    /// Width of the values of all heads of one position.
    pub fn values_dim(&self) -> usize {
        self.heads * self.value_dim
    }

    /// The projections that queries are made by, in order.
    pub fn queries(&self) -> Vec<LinearSpec> {
        match &self.queries {
            LatentQueries::Whole(module) => {
                vec![linear(module, self.q_dim(), self.hidden_size, false)]
            }
            LatentQueries::Short { down, bias, norm, up } => vec![
                linear(down, norm.width, self.hidden_size, *bias),
                linear(up, self.q_dim(), norm.width, false),
            ],
        }
    }

    /// The projection to what is kept.
    pub fn down(&self) -> LinearSpec {
        linear(&self.down, self.kept_dim(), self.hidden_size, self.down_bias)
    }

    /// What makes keys and values of latents, of all heads: one matrix, or one of keys and one of values.
    pub fn ups(&self) -> Vec<LinearSpec> {
        let Self { heads, plain_dim, value_dim, rank, up, keys, .. } = self;
        match keys {
            None => vec![linear(up, heads * (plain_dim + value_dim), *rank, false)],
            Some(keys) => vec![
                linear(keys, heads * rank, *plain_dim, false),
                linear(up, heads * value_dim, *rank, false),
            ],
        }
    }

    /// What makes keys of one head.
    pub fn keys_of(&self, head: usize) -> LatentKeys {
        let all = self.ups().swap_remove(0);
        match self.keys {
            None => {
                let start = head * (self.plain_dim + self.value_dim);
                LatentKeys::Rows(LinearSpec { rows: start..start + self.plain_dim, ..all })
            }
            Some(_) => {
                let rows = head * self.rank..(head + 1) * self.rank;
                LatentKeys::Turned(LinearSpec { rows, ..all })
            }
        }
    }

    /// What makes values of one head.
    pub fn values_of(&self, head: usize) -> LinearSpec {
        let all = self.ups().pop().expect("one or two");
        let (between, before) = match self.keys {
            None => (self.plain_dim + self.value_dim, self.plain_dim),
            Some(_) => (self.value_dim, 0),
        };
        let start = head * between + before;
        LinearSpec { rows: start..start + self.value_dim, ..all }
    }

    /// The projection of the weighted values.
    pub fn output(&self) -> LinearSpec {
        linear(&self.output, self.hidden_size, self.values_dim(), self.output_bias)
    }

    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = LinearSpec> {
        self.queries().into_iter().chain([self.down()]).chain(self.ups()).chain([self.output()])
    }

    /// Its norms.
    pub(super) fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_queries = match &self.queries {
            LatentQueries::Whole(_) => None,
            LatentQueries::Short { norm, .. } => Some(norm),
        };
        of_queries.into_iter().chain([&self.norm])
    }

    /// The same with a part of its heads: `share` of them, one at least.
    #[must_use]
    pub fn narrowed(&self, share: f64) -> Self {
        Self { heads: ((self.heads as f64 * share) as usize).max(1), ..self.clone() }
    }
}
