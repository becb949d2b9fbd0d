//! GLM-4.5 to 4.7 with experts.

use serde_json::json;

use super::keys::Keys;
use super::row::{Arch, Fields, PLAIN};
use crate::container::gguf::error::GgufError;

/// How experts' scores are made.
pub(super) const GATING: &str = "expert_gating_func";
/// How many groups of experts there are, and of how many some are chosen.
pub(super) const GROUPS: [&str; 2] = ["expert_group_count", "expert_group_used_count"];
/// The one way in which experts' scores are made: the sigmoid of each product.
pub(super) const SIGMOID: u64 = 2;

pub(super) const GLM4_MOE: Arch = Arch {
    name: "glm4moe",
    experts: true,
    class: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    partial: true,
    names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    more: |keys, there, fields| {
        if keys.unsigned(GATING)? != Some(SIGMOID) {
            return Err(keys.unsupported(GATING, &SIGMOID.to_string()));
        }
        routed(keys, fields)?;
        fields.insert("use_qk_norm".into(), json!(there("blk.0.attn_q_norm.weight")));
        Ok(())
    },
    ..PLAIN
};

/// Reads sizes of experts and what routers do, as DeepSeek-V3 and those after it say them.
pub(super) fn routed(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    for (field, key) in [
        ("n_routed_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
    ] {
        fields.insert(field.into(), json!(keys.size(key)?));
    }
    let shared = keys.unsigned("expert_shared_count")?.unwrap_or(0);
    let dense = keys.unsigned("leading_dense_block_count")?.unwrap_or(0);
    fields.insert("intermediate_size".into(), json!(keys.of_layers("feed_forward_length")?));
    fields.insert("n_shared_experts".into(), json!(shared));
    fields.insert("first_k_dense_replace".into(), json!(dense));
    for (field, key) in ["n_group", "topk_group"].into_iter().zip(GROUPS) {
        fields.insert(field.into(), json!(keys.unsigned(key)?));
    }
    let scale = keys.number("expert_weights_scale")?.unwrap_or(1.0);
    let norm = keys.flag("expert_weights_norm")?.unwrap_or(false);
    fields.insert("routed_scaling_factor".into(), json!(scale));
    fields.insert("norm_topk_prob".into(), json!(norm));
    Ok(())
}
