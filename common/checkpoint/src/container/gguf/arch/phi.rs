//! Phi-3 and Phi-4, but for those whose rotations are stretched for longer contexts.

use serde_json::json;

use super::row::{Arch, PLAIN};

pub(super) const PHI3: Arch = Arch {
    name: "phi3",
    class: "Phi3ForCausalLM",
    model_type: "phi3",
    partial: true,
    names: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
    more: |keys, _, fields| {
        let window = keys.unsigned("attention.sliding_window")?.filter(|window| *window > 0);
        fields.insert("sliding_window".into(), json!(window));
        Ok(())
    },
    ..PLAIN
};
