//! Qwen3 with experts: attention as in Qwen3, and a mixture of experts on most layers.
//!
//! `Qwen3MoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3MoeForCausalLM", model_type: "qwen3_moe", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    // The reference gives every layer a window then, whatever `max_window_layers` says; no published file has one.
    decoder.refuse(fields, &["mlp_bias", "use_sliding_window"])?;
    window::read(fields, FAMILY.architecture, WindowRule::Never, decoder.num_layers)?;
    let mlp = decoder.mlp(fields)?;
    let renormalise = fields.flag("norm_topk_prob")?.unwrap_or(false);
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let router = mixture::softmax("mlp.gate", renormalise);
    let experts = decoder.experts(fields, Mixture::USUAL, &mlp, inner_size, router)?;
    let is_sparse = mixture::sparse_layers_by_step(fields)?;
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let layer = |index: usize| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            ..decoder.attention()
        };
        let sparse = is_sparse(index);
        let op = if sparse { Op::Experts(experts.clone()) } else { Op::Mlp(mlp.clone()) };
        decoder.pre_norm(attention, op)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
