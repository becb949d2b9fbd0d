//! What the metadata say of the model, as the configuration that the Hub has of it.

use serde_json::{Map, Value, json};

use super::error::AprError;
use super::texts::CONFIG_KEY;
use super::tokenizer::VOCABULARY_KEY;

/// The numbers that say how large a model is: their keys here, and in a configuration; and whether there can be no model without
/// it. None has a default: one of a family's may be another than the model's.
const NUMBERS: &[(&str, &str, bool)] = &[
    ("hidden_size", "hidden_size", true),
    ("num_layers", "num_hidden_layers", true),
    ("num_heads", "num_attention_heads", true),
    ("num_kv_heads", "num_key_value_heads", true),
    ("vocab_size", "vocab_size", true),
    ("intermediate_size", "intermediate_size", true),
    ("max_position_embeddings", "max_position_embeddings", true),
    ("rope_theta", "rope_theta", true),
    ("rms_norm_eps", "rms_norm_eps", true),
    ("head_dim", "head_dim", false),
    ("num_experts", "num_experts", false),
    ("num_experts_per_tok", "num_experts_per_tok", false),
    ("moe_intermediate_size", "moe_intermediate_size", false),
];

/// Keys of the format that say nothing of what is computed, or that are read apart.
const OTHERS: &[&str] = &[
    "architecture",
    "author",
    "chat_format",
    "chat_template",
    "created_at",
    "data_license",
    "data_source",
    "description",
    "hf_architecture",
    "hf_model_type",
    "license",
    "model_type",
    "name",
    "original_format",
    "param_count",
    "quantization", // Each tensor has its own kind.
    "rope_type",
    "sharding",
    "source",
    "special_tokens",
    "total_size",
    "version",
];

/// The rotation of halves of a head, as the format numbers it: the one that families have.
const ROTATES_HALVES: u64 = 2;

/// The configuration: the file that a model on the Hub has, where it is kept, else what the format's own keys say.
///
/// `has_head`: whether there is an output matrix beside the embedding, where nothing else says so. A key that the format does not
/// know and that has no dot is a field of a configuration: whoever reads it refuses what it does not understand.
///
/// # Errors
/// [`AprError::MissingKey`], [`AprError::WrongType`], [`AprError::RopeType`].
pub(super) fn config(metadata: &Map<String, Value>, has_head: bool) -> Result<Vec<u8>, AprError> {
    let get = |key: &str| metadata.get(key).filter(|value| !value.is_null());
    let text = |key: &'static str| match get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(AprError::WrongType { key, expected: "a string" }),
    };
    if let Some(config) = text(CONFIG_KEY)? {
        return Ok(config.as_bytes().to_vec());
    }
    let mut fields = Map::new();
    for (key, value) in metadata {
        let known = OTHERS.contains(&key.as_str()) || NUMBERS.iter().any(|(own, _, _)| own == key);
        if !known && !key.contains('.') {
            fields.insert(key.clone(), value.clone());
        }
    }
    match (text("hf_architecture")?, text("hf_model_type")?, text("architecture")?) {
        (None, None, None) => return Err(AprError::MissingKey { key: "hf_architecture" }),
        (None, None, Some(family)) => fields.insert("model_type".to_owned(), json!(family)),
        (architecture, model_type, _) => {
            if let Some(architecture) = architecture {
                fields.insert("architectures".to_owned(), json!([architecture]));
            }
            fields.insert("model_type".to_owned(), json!(model_type))
        }
    };
    for &(key, field, required) in NUMBERS {
        match get(key) {
            Some(number @ Value::Number(_)) => {
                drop(fields.insert(field.to_owned(), number.clone()))
            }
            Some(_) => return Err(AprError::WrongType { key, expected: "a number" }),
            None if required => return Err(AprError::MissingKey { key }),
            None => {}
        }
    }
    if let Some(found) = get("rope_type")
        && found.as_u64() != Some(ROTATES_HALVES)
    {
        return Err(AprError::RopeType { rope_type: found.to_string() });
    }
    fields.entry("tie_word_embeddings").or_insert(json!(!has_head));
    for (field, token) in [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token")] {
        if let Some(id) = token_id(metadata, token) {
            fields.entry(field).or_insert(json!(id));
        }
    }
    Ok(serde_json::to_vec(&fields).expect("strings and numbers always serialise"))
}

/// The id of a special token by the vocabulary, if both are there.
fn token_id(metadata: &Map<String, Value>, token: &str) -> Option<usize> {
    let text = metadata.get("special_tokens")?.get(token)?.as_str()?;
    let vocabulary = metadata.get(VOCABULARY_KEY)?.as_array()?;
    vocabulary.iter().position(|word| word.as_str() == Some(text))
}
