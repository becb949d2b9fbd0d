//! GLM-4.5 to 4.7 with experts: a half of each head rotates; after the first layers a mixture with a network beside it.
//!
//! `Glm4MoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Routed};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Glm4MoeForCausalLM", model_type: "glm4_moe", read };

const DEFAULTS: Routed = Routed { shared: 1, renormalise: true, groups: (1, 1), multiplier: 1.0 };
const ROTARY: Rotary = Rotary { part: 0.5, ..Rotary::PARTIAL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    fields.understand(&["num_nextn_predict_layers"]); // They come after the last layer.
    let qkv_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let qk_norm = fields.flag("use_qk_norm")?.unwrap_or(false).then_some(norms);
    let mlp = decoder.mlp(fields)?;
    let dense = fields.optional_whole("first_k_dense_replace", 0, limit::LAYERS)?.unwrap_or(1);
    let sparse = mixture::routed(&decoder, fields, &mlp, DEFAULTS)?;
    let layer = |index| {
        let plain = decoder.attention();
        let attention = AttentionSpec { qkv_bias, qk_norm: qk_norm.clone(), ..plain };
        let op = if index < dense { Op::Mlp(mlp.clone()) } else { sparse.clone() };
        decoder.pre_norm(attention, op)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
