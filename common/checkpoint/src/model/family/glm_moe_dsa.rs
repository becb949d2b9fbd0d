//! GLM-5: latent attention with an indexer, whose choice some layers take over from the one before, and experts.
//!
//! `GlmMoeDsaForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::latent::{self, Latent, ROTARY};
use super::mixture::Routed;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "GlmMoeDsaForCausalLM", model_type: "glm_moe_dsa", read };

const LATENT: Latent = Latent {
    architecture: FAMILY.architecture,
    rotary: ROTARY,
    routed: Routed { groups: (1, 1), ..Routed::DEEPSEEK_V3 },
    dense_first: 3,
};
/// Which layers have an indexer, and what it turns: up to the positions of which it chooses all, that does not matter.
const OF_INDEXERS: &[&str] = &[
    "index_share_for_mtp_iteration",
    "index_skip_topk_offset",
    "index_topk_freq",
    "index_topk_pattern",
    "indexer_rope_interleave",
    "indexer_types",
];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let refused = |field: &str, found: &str| {
        let (field, found) = (field.to_owned(), found.to_owned());
        Err(ConfigError::Unsupported { field, found, architecture: FAMILY.architecture })
    };
    if fields.flag("rope_interleave")? == Some(false) {
        return refused("rope_interleave", "false");
    }
    match fields.text("moe_router_dtype")? {
        None | Some("float32") => {}
        Some(other) => return refused("moe_router_dtype", other),
    }
    // Some files say the number of experts under other names, too.
    let experts = fields.size("n_routed_experts", limit::EXPERTS_OF_LAYER)?;
    for field in ["num_experts", "num_local_experts"] {
        match fields.optional_size(field, limit::EXPERTS_OF_LAYER)? {
            Some(other) if other != experts => return refused(field, &other.to_string()),
            _ => {}
        }
    }
    fields.understand(OF_INDEXERS);
    latent::read_indexed(fields, LATENT)
}
