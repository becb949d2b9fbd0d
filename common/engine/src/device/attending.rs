//! What attention is to a device: how queries meet what is kept of positions.

use cake_checkpoint::{AttentionSpec, LatentSpec};

/// Heads of queries that meet heads of keys, of which consecutive ones share one, and are given the weighted values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Attending {
    /// Heads of queries.
    pub(crate) heads: usize,
    /// Heads that are kept of a position; divides `heads`.
    pub(crate) kv_heads: usize,
    /// Numbers of a head, of queries as of what is kept.
    pub(crate) head_dim: usize,
    /// Whether keys are the values, too: only they are kept then.
    pub(crate) keys_alone: bool,
    /// What scores are multiplied with.
    pub(crate) scale: f64,
    /// What bounds them then: `softcap · tanh(score / softcap)`.
    pub(crate) softcap: Option<f64>,
    /// Positions that a row sees, its own included; `None` for all.
    pub(crate) window: Option<usize>,
}

impl Attending {
    /// Width of the queries of one position.
    pub(crate) fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl From<&AttentionSpec> for Attending {
    fn from(spec: &AttentionSpec) -> Self {
        let &AttentionSpec { heads, kv_heads, head_dim, scale, softcap, window, .. } = spec;
        Self { heads, kv_heads, head_dim, keys_alone: false, scale, softcap, window }
    }
}

impl From<&LatentSpec> for Attending {
    /// Queries that were multiplied with what makes keys of latents meet these themselves.
    fn from(spec: &LatentSpec) -> Self {
        let (head_dim, scale) = (spec.kept_dim(), spec.scale);
        let (kv_heads, keys_alone) = (1, true);
        let (softcap, window) = (None, None);
        Self { heads: spec.heads, kv_heads, head_dim, keys_alone, scale, softcap, window }
    }
}
