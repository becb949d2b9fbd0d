//! Qwen2, Qwen3 and Qwen3 with experts.

use serde_json::json;

use super::keys::Keys;
use super::row::{Arch, Fields, PLAIN};
use crate::container::gguf::error::GgufError;

pub(super) const QWEN2: Arch =
    Arch { name: "qwen2", class: "Qwen2ForCausalLM", model_type: "qwen2", ..PLAIN };

pub(super) const QWEN3: Arch =
    Arch { name: "qwen3", class: "Qwen3ForCausalLM", model_type: "qwen3", ..PLAIN };

/// Every layer has experts.
pub(super) const QWEN3_MOE: Arch = Arch {
    name: "qwen3moe",
    experts: true,
    class: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    more: |keys, _, fields| {
        let inner = keys.size("expert_feed_forward_length")?;
        let dense = keys.unsigned("feed_forward_length")?.unwrap_or(inner);
        fields.insert("intermediate_size".into(), json!(dense));
        fields.insert("moe_intermediate_size".into(), json!(inner));
        fields.insert("num_experts".into(), json!(keys.size("expert_count")?));
        fields.insert("num_experts_per_tok".into(), json!(keys.size("expert_used_count")?));
        shared_out(keys, fields)?;
        fields.insert("decoder_sparse_step".into(), json!(1));
        Ok(())
    },
    ..PLAIN
};

/// The weights of chosen experts are divided by their sum, which few files say: all published models' are.
pub(super) fn shared_out(keys: &Keys<'_>, fields: &mut Fields) -> Result<(), GgufError> {
    const NORM: &str = "expert_weights_norm";
    if keys.flag(NORM)? == Some(false) {
        return Err(keys.unsupported(NORM, "true"));
    }
    fields.insert("norm_topk_prob".into(), json!(true));
    Ok(())
}
