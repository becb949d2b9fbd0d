//! Ministral 3 and what came before it with eyes: Llama's layers with a stretch of their own, and queries that grow with their
//! position.

use serde_json::{Value, json};

use super::llama::LLAMA;
use super::row::Arch;

pub(super) const MISTRAL3: Arch = Arch {
    name: "mistral3",
    class: "Ministral3ForCausalLM",
    model_type: "ministral3",
    // The first is 1 in published models: the format cannot say it.
    stretch: Some(|all| [1.0, all]),
    more: |keys, _, fields| {
        const GROWTH: &str = "attention.temperature_scale";
        let mut rotation = fields.remove("rope_scaling").unwrap_or(json!({"rope_type": "default"}));
        rotation["rope_theta"] = fields.remove("rope_theta").unwrap_or(Value::Null);
        if let Some(growth) = keys.number(GROWTH)?.filter(|growth| *growth != 0.0) {
            // In spans as long as contexts were before the model was stretched.
            if rotation["original_max_position_embeddings"].is_null() {
                return Err(keys.unsupported(GROWTH, "0 where no context was stretched"));
            }
            rotation["llama_4_scaling_beta"] = json!(growth);
        }
        fields.insert("rope_parameters".into(), rotation);
        Ok(())
    },
    ..LLAMA
};
