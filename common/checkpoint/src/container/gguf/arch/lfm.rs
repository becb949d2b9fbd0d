//! LFM2 and LFM2.5, with experts and without: short convolutions on layers that have no heads of keys.

use serde_json::json;

use super::glm::{GATING, SIGMOID};
use super::keys::{self, Keys};
use super::qwen::shared_out;
use super::row::{Arch, Fields, PLAIN};
use crate::container::gguf::error::GgufError;

pub(super) const LFM2: Arch = Arch {
    name: "lfm2",
    class: "Lfm2ForCausalLM",
    model_type: "lfm2",
    heads: keys::of_some,
    // Called so by mistake, which readers know.
    outer: &[("token_embd_norm", "model.embedding_norm")],
    ones: &[("shortconv.conv.weight", 1)],
    names: &[
        ("attn_norm", "operator_norm"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("attn_output", "self_attn.out_proj"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("ffn_norm", "ffn_norm"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
        ("ffn_gate_exps", "feed_forward.switch_mlp.gate_proj"),
        ("ffn_up_exps", "feed_forward.switch_mlp.up_proj"),
        ("ffn_down_exps", "feed_forward.switch_mlp.down_proj"),
    ],
    more: |keys, _, fields| {
        // Files say how wide networks are, and not what that was made of.
        fields.insert("block_auto_adjust_ff_dim".into(), json!(false));
        layers(keys, fields)
    },
    ..PLAIN
};

pub(super) const LFM2_MOE: Arch = Arch {
    name: "lfm2moe",
    experts: true,
    class: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    more: |keys, there, fields| {
        if keys.unsigned(GATING)? != Some(SIGMOID) {
            return Err(keys.unsupported(GATING, &SIGMOID.to_string()));
        }
        let dense = keys.unsigned("leading_dense_block_count")?.unwrap_or(0);
        let first = format!("blk.{dense}.exp_probs_b.bias");
        fields.insert("num_dense_layers".into(), json!(dense));
        fields.insert("use_expert_bias".into(), json!(there(&first)));
        shared_out(keys, fields)?;
        fields.insert("intermediate_size".into(), json!(keys.of_layers("feed_forward_length")?));
        for (field, key) in [
            ("num_experts", "expert_count"),
            ("num_experts_per_tok", "expert_used_count"),
            ("moe_intermediate_size", "expert_feed_forward_length"),
        ] {
            fields.insert(field.into(), json!(keys.size(key)?));
        }
        layers(keys, fields)
    },
    ..LFM2
};

/// Reads what both have: which layers attend, and the convolutions of the others.
fn layers(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    let kind = |attends: &bool| if *attends { "full_attention" } else { "conv" };
    let types: Vec<&str> = keys.attends.iter().map(kind).collect();
    fields.insert("layer_types".into(), json!(types));
    fields.insert("conv_L_cache".into(), json!(keys.size("shortconv.l_cache")?));
    let eps = fields.remove("rms_norm_eps");
    fields.insert("norm_eps".into(), json!(eps));
    Ok(())
}
