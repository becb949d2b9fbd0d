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
    /// Whether each head has a score beside those of its positions, which has no value.
    pub(crate) has_sinks: bool,
    /// Positions that a row sees, its own included; `None` for all.
    pub(crate) window: Option<usize>,
    /// Positions in a segment, if a row sees none of earlier segments.
    pub(crate) segment: Option<usize>,
}

impl Attending {
    /// Width of the queries of one position.
    pub(crate) fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The first position that a row at `position` sees; the last one is its own.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        let in_window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let in_segment = self.segment.map_or(0, |segment| position - position % segment.max(1));
        in_window.max(in_segment)
    }
}

impl From<&AttentionSpec> for Attending {
    fn from(spec: &AttentionSpec) -> Self {
        let &AttentionSpec { heads, kv_heads, head_dim, scale, softcap, window, segment, .. } =
            spec;
        let has_sinks = spec.sinks.is_some();
        let keys_alone = false;
        Self { heads, kv_heads, head_dim, keys_alone, scale, softcap, has_sinks, window, segment }
    }
}

impl From<&LatentSpec> for Attending {
    /// Queries that were multiplied with what makes keys of latents meet these themselves.
    fn from(spec: &LatentSpec) -> Self {
        let (head_dim, scale) = (spec.kept_dim(), spec.scale);
        let (kv_heads, keys_alone) = (1, true);
        Self {
            heads: spec.heads,
            kv_heads,
            head_dim,
            keys_alone,
            scale,
            softcap: None,
            has_sinks: false,
            window: None,
            segment: None,
        }
    }
}
