//! DeepSeek-V3.2: DeepSeek-V3's layers, in which an indexer chooses the positions that a row sees once there are more than a
//! number of them. Up to there it chooses all, so that contexts of that length are computed without it.
//!
//! `DeepseekV32ForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::latent::{self, Latent, ROTARY};
use super::mixture::Routed;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::spec::Name;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "DeepseekV32ForCausalLM", model_type: "deepseek_v32", read };

const LATENT: Latent = Latent {
    architecture: FAMILY.architecture,
    rotary: ROTARY,
    routed: Routed::DEEPSEEK_V3,
    dense_first: 3,
};
/// Positions that the indexer chooses where a configuration does not say.
const CHOSEN: usize = 2048;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let model = latent::read(fields, LATENT)?;
    fields.understand(&["index_head_dim", "index_n_heads", "num_mtp_layers"]);
    if let Some(types) = fields.get("layer_types") {
        let indexed = |value: &serde_json::Value| value.as_str() == Some("indexed_attention");
        if !types.as_array().is_some_and(|types| types.iter().all(indexed)) {
            return Err(wrong("layer_types", "a list of indexed_attention", types));
        }
    }
    let chosen = fields.optional_size("index_topk", limit::POSITIONS)?.unwrap_or(CHOSEN);
    Ok(ModelSpec {
        max_position_embeddings: model.max_position_embeddings.min(chosen),
        other_modules: vec![Name::Borrowed("self_attn.indexer.")],
        ..model
    })
}
