//! Granite 3.

use serde_json::json;

use super::llama::LLAMA;
use super::row::Arch;

/// Shaped like Llama, with factors of its own.
pub(super) const GRANITE: Arch = Arch {
    name: "granite",
    class: "GraniteForCausalLM",
    model_type: "granite",
    more: |keys, _, fields| {
        // Here, and nowhere else, it is whether anything rotates.
        if keys.flag("rope.scaling.finetuned")? == Some(false) {
            return Err(keys.unsupported("rope.scaling.finetuned", "true"));
        }
        for (field, key) in [
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("attention_multiplier", "attention.scale"),
            ("logits_scaling", "logit_scale"), // What logits are divided by, in both.
        ] {
            fields.insert(field.into(), json!(keys.needed(key)?));
        }
        Ok(())
    },
    ..LLAMA
};
