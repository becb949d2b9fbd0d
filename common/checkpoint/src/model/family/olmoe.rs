//! OLMoE: norms of queries and keys over all heads at once, and a mixture of experts on every layer.
//!
//! `OlmoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, shown};
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "OlmoeForCausalLM", model_type: "olmoe", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    if let Some(bound) = fields.get("clip_qkv") {
        return Err(decoder.unsupported("clip_qkv", &shown(bound)));
    }
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp = decoder.mlp(fields)?;
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(false);
    let router = mixture::softmax("mlp.gate", renormalise);
    let experts = decoder.experts(fields, Mixture::USUAL, &mlp, mlp.inner_size, router)?;
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: Some(decoder.whole_norms(["self_attn.q_norm", "self_attn.k_norm"])),
        ..decoder.attention()
    };
    let layer = decoder.pre_norm(attention, Op::Experts(experts));
    let layers = vec![layer; decoder.num_layers];
    Ok(decoder.model(layers, false))
}
