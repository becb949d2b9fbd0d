//! MiniMax-M2: norms over all heads of queries and of keys, a part of each head that rotates, and experts on every layer.
//!
//! `MiniMaxM2ForCausalLM` in Hugging Face transformers.

use serde_json::Value;

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, shown};
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "MiniMaxM2ForCausalLM", model_type: "minimax_m2", read };

const ROTARY: Rotary = Rotary { theta: 5e6, dim_field: Some("rotary_dim"), ..Rotary::PARTIAL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.only(fields, "scoring_func", &["sigmoid"])?;
    decoder.only(fields, "qk_norm_type", &["per_layer"])?;
    decoder.require(fields, &["use_routing_bias", "use_qk_norm"])?;
    let refuse = |field: &str, value| {
        let (field, found) = (field.to_owned(), shown(value));
        Err(ConfigError::Unsupported { field, found, architecture: FAMILY.architecture })
    };
    match fields.get("attn_type_list") {
        Some(Value::Array(kinds)) if kinds.iter().all(|kind| kind == 1) => {}
        None => {}
        Some(other) => return refuse("attn_type_list", other),
    }
    if let Some(other) = fields.get("shared_intermediate_size").filter(|size| **size != 0) {
        return refuse("shared_intermediate_size", other);
    }
    fields.understand(&["mlp_intermediate_size", "shared_moe_mode"]); // Of networks that are not there.
    // Of layers that predict further tokens, which come after the last one.
    fields.understand(&["use_mtp", "num_mtp_modules", "mtp_transformer_layers"]);
    let norms = decoder.whole_norms(["self_attn.q_norm", "self_attn.k_norm"]);
    let mlp = decoder.mlp(fields)?;
    let router =
        mixture::sigmoid("block_sparse_moe.gate", "block_sparse_moe.e_score_correction_bias");
    let experts = decoder.experts(fields, Mixture::BLOCK_SPARSE, &mlp, mlp.inner_size, router)?;
    let layer = |_| {
        let attention = AttentionSpec { qk_norm: Some(norms.clone()), ..decoder.attention() };
        decoder.pre_norm(attention, Op::Experts(experts.clone()))
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
