//! What families with latent attention share: its sizes and modules, as DeepSeek calls them.

use serde_json::Value;

use super::decoder::Decoder;
use super::mixture::{self, Routed};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::latent::{LatentQueries, LatentSpec};
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::rotation::{RopeScaling, RotaryPairs};
use crate::model::spec::{Name, NormSpec, Op};
use crate::model::whole::ModelSpec;

/// What a family has where a configuration does not say it.
#[derive(Clone, Copy)]
pub(super) struct Latent {
    pub(super) architecture: &'static str,
    /// What its rotation is but for the pairs.
    pub(super) rotary: Rotary,
    /// Its mixtures.
    pub(super) routed: Routed,
    /// So many of the first layers have no experts.
    pub(super) dense_first: usize,
}

/// The part of a head that rotates, which has frequencies as if it were the head.
pub(super) const ROTARY: Rotary = Rotary { head_dim: "qk_rope_head_dim", ..Rotary::FULL };

/// Epsilon of the norms of latents and of short queries: the reference passes the configuration's by.
const EPS: f64 = 1e-6;

/// A model of layers with latent attention and, but for the first ones, experts.
///
/// # Errors
/// If a field is missing, out of range, or means another computation.
pub(super) fn read(fields: &Fields<'_>, family: Latent) -> Result<ModelSpec, ConfigError> {
    let pairs = match fields.flag("rope_interleave")?.unwrap_or(true) {
        true => RotaryPairs::Neighbours,
        false => RotaryPairs::Halves,
    };
    let rotary = Rotary { pairs, ..family.rotary };
    let decoder = Decoder::read(fields, family.architecture, rotary)?;
    if decoder.kv_heads != decoder.heads {
        return Err(decoder.unsupported("num_key_value_heads", &decoder.kv_heads.to_string()));
    }
    // The sum of two that are said, and what the reference's newer versions write of one of them.
    fields.understand(&["qk_head_dim", "head_dim"]);
    let attention = attention(&decoder, fields)?;
    let mlp = decoder.mlp(fields)?;
    let sparse = mixture::routed(&decoder, fields, &mlp, family.routed)?;
    let layer = |is_sparse| {
        let op = if is_sparse { sparse.clone() } else { Op::Mlp(mlp.clone()) };
        decoder.two_ops(Op::Latent(attention.clone()), op)
    };
    let layers = mixture::sparse_layers(&decoder, fields, family.dense_first)?;
    let layers = layers.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}

/// Positions that an indexer chooses where a configuration does not say.
const CHOSEN: usize = 2048;

/// The same where an indexer chooses the positions that a row sees once there are more than a number of them: up to there it
/// chooses all, so that contexts of that length are computed without it.
///
/// # Errors
/// As [`read`]; if layers are of another kind.
pub(super) fn read_indexed(fields: &Fields<'_>, family: Latent) -> Result<ModelSpec, ConfigError> {
    let model = read(fields, family)?;
    fields.understand(&["index_head_dim", "index_n_heads", "num_mtp_layers"]);
    if let Some(types) = fields.get("layer_types") {
        // The second is the word of older versions of the reference.
        let words = ["indexed_attention", "deepseek_sparse_attention"];
        let indexed = |value: &Value| value.as_str().is_some_and(|word| words.contains(&word));
        let layers = model.layers.len();
        if !types.as_array().is_some_and(|all| all.len() == layers && all.iter().all(indexed)) {
            return Err(wrong("layer_types", "a list of indexed_attention for every layer", types));
        }
    }
    let chosen = fields.optional_size("index_topk", limit::POSITIONS)?.unwrap_or(CHOSEN);
    Ok(ModelSpec {
        max_position_embeddings: model.max_position_embeddings.min(chosen),
        other_modules: vec![Name::Borrowed("self_attn.indexer.")],
        ..model
    })
}

/// Latent attention as DeepSeek's configurations say it.
///
/// # Errors
/// If a field is missing or out of range.
pub(super) fn attention(decoder: &Decoder, fields: &Fields<'_>) -> Result<LatentSpec, ConfigError> {
    let dim = |field| fields.size(field, limit::HEAD_DIM);
    let (plain_dim, rank) = (dim("qk_nope_head_dim")?, dim("kv_lora_rank")?);
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let name = Name::Borrowed;
    let norm = |path, width| NormSpec { width, eps: EPS, ..decoder.norm(path) };
    let queries = match fields.optional_size("q_lora_rank", limit::HIDDEN)? {
        None => LatentQueries::Whole(name("self_attn.q_proj")),
        Some(width) => LatentQueries::Short {
            down: name("self_attn.q_a_proj"),
            bias,
            norm: norm("self_attn.q_a_layernorm", width),
            up: name("self_attn.q_b_proj"),
        },
    };
    let rotary_dim = decoder.head_dim;
    Ok(LatentSpec {
        hidden_size: decoder.hidden_size,
        heads: decoder.heads,
        plain_dim,
        rotary_dim,
        value_dim: dim("v_head_dim")?,
        rank,
        queries,
        down: name("self_attn.kv_a_proj_with_mqa"),
        down_bias: bias,
        norm: norm("self_attn.kv_a_layernorm", rank),
        up: name("self_attn.kv_b_proj"),
        keys: None,
        output: name("self_attn.o_proj"),
        output_bias: bias,
        scale: ((plain_dim + rotary_dim) as f64).powf(-0.5) * stretched(decoder, fields)?,
        rotation: Some(0),
    })
}

/// What scores are multiplied with where the context was stretched (`yarn_apply_mscale` in Hugging Face transformers).
fn stretched(decoder: &Decoder, fields: &Fields<'_>) -> Result<f64, ConfigError> {
    let parameters = match fields.object("rope_parameters")? {
        Some(parameters) => Some(parameters),
        None => fields.object("rope_scaling")?,
    };
    let scale = match parameters {
        Some(it) => it.optional_number("mscale_all_dim", -1.0, limit::FACTOR)?,
        None => None,
    };
    let scaling = decoder.rotations.first().map(|rotation| &rotation.rope.scaling);
    let (Some(scale), Some(scaling)) = (scale, scaling) else { return Ok(1.0) };
    let factor = match *scaling {
        RopeScaling::None | RopeScaling::LongRope { .. } => 1.0,
        RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. }
        | RopeScaling::Proportional { factor, .. } => factor,
    };
    // Of a scale of zero it is one, as it is of a context that was not stretched.
    Ok(if factor <= 1.0 { 1.0 } else { (0.1 * scale * factor.ln() + 1.0).powi(2) })
}
