//! Llama, Mistral and what is shaped like them, and Mixtral.

use serde_json::json;

use super::row::{Arch, PLAIN};

pub(super) const LLAMA: Arch =
    Arch { name: "llama", class: "LlamaForCausalLM", model_type: "llama", pairs: true, ..PLAIN };

pub(super) const MIXTRAL: Arch = Arch {
    experts: true,
    class: "MixtralForCausalLM",
    model_type: "mixtral",
    names: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
        ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
        ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    ],
    more: |keys, _, fields| {
        fields.insert("intermediate_size".into(), json!(keys.of_layers("feed_forward_length")?));
        fields.insert("num_local_experts".into(), json!(keys.size("expert_count")?));
        fields.insert("num_experts_per_tok".into(), json!(keys.size("expert_used_count")?));
        Ok(())
    },
    ..LLAMA
};
