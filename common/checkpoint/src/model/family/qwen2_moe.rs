//! Qwen2 with experts (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen2's attention, a mixture on most layers, and a network beside
//! it whose part the row decides.
//!
//! `Qwen2MoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec, Name, Op};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2MoeForCausalLM", model_type: "qwen2_moe", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let qkv_bias = fields.flag("qkv_bias")?.unwrap_or(true);
    let mlp = decoder.mlp(fields)?;
    // The reference then gives every other layer a window; no published file has one.
    decoder.refuse(fields, &["use_sliding_window"])?;
    window::read(fields, FAMILY.architecture, WindowRule::Never, decoder.num_layers)?;
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(false);
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let shared_size = fields.size("shared_expert_intermediate_size", limit::INNER)?;
    let router = mixture::softmax("mlp.gate", renormalise);
    let experts = decoder.experts(fields, Mixture::USUAL, &mlp, inner_size, router)?;
    let output_gate = Some(Name::Borrowed("mlp.shared_expert_gate"));
    let gated = MlpSpec { output_gate, ..mlp.clone() };
    let sparse = mixture::with_shared(experts, &gated, mixture::SHARED_EXPERT, shared_size);
    let is_sparse = mixture::sparse_layers_by_step(fields)?;
    let layer = |index| {
        let attention = AttentionSpec { qkv_bias, ..decoder.attention() };
        let op = if is_sparse(index) { sparse.clone() } else { Op::Mlp(mlp.clone()) };
        decoder.pre_norm(attention, op)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
