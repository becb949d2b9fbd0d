//! gpt-oss.

use serde_json::json;

use super::row::{Arch, PLAIN};

pub(super) const GPT_OSS: Arch = Arch {
    name: "gpt-oss",
    experts: true,
    class: "GptOssForCausalLM",
    model_type: "gpt_oss",
    names: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("attn_sinks.weight", "self_attn.sinks"),
        ("ffn_gate_inp", "mlp.router"),
    ],
    more: |keys, _, fields| {
        let inner = keys.size("expert_feed_forward_length")?;
        keys.unsigned("feed_forward_length")?; // Nothing is as wide but experts.
        fields.insert("intermediate_size".into(), json!(inner));
        fields.insert("num_local_experts".into(), json!(keys.size("expert_count")?));
        fields.insert("num_experts_per_tok".into(), json!(keys.size("expert_used_count")?));
        fields.insert("sliding_window".into(), json!(keys.size("attention.sliding_window")?));
        if let Some(scaling) = fields.get_mut("rope_scaling").and_then(|it| it.as_object_mut()) {
            // The format cannot say it, and these models are so.
            scaling.insert("truncate".into(), json!(false));
        }
        Ok(())
    },
    ..PLAIN
};
