//! What a file says of its model, as a configuration says it.

use serde_json::{Value, json};

use super::rope;
use super::row::{Arch, Fields};
use crate::container::gguf::error::GgufError;
use crate::container::gguf::tensors::TensorInfo;
use crate::container::gguf::value::Metadata;

/// What the metadata and the tensors that there are say of the model, as the configuration that the Hub has of it. Scaling of
/// rotations is not in it where a tensor says it.
///
/// # Errors
/// [`GgufError`], naming the key.
pub(crate) fn config(
    arch: &'static Arch,
    metadata: &Metadata,
    tensors: &[&TensorInfo],
) -> Result<Fields, GgufError> {
    let keys = arch.keys(metadata)?;
    if keys.flag("attention.causal")? == Some(false) {
        return Err(keys.unsupported("attention.causal", "true"));
    }
    let mut fields = Fields::new();
    let mut put = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    let there = |name: &str| tensors.iter().find(|tensor| tensor.name == name).copied();
    put("architectures", json!([arch.class]));
    put("model_type", json!(arch.model_type));
    put("num_hidden_layers", json!(keys.layers));
    put("hidden_size", json!(keys.size("embedding_length")?));
    put("max_position_embeddings", json!(keys.size("context_length")?));
    put("num_attention_heads", json!(keys.heads));
    put("num_key_value_heads", json!(keys.kv_heads));
    put("head_dim", json!(keys.head_dim));
    if !arch.experts {
        put("intermediate_size", json!(keys.of_layers("feed_forward_length")?));
    }
    put("rms_norm_eps", json!(keys.needed("attention.layer_norm_rms_epsilon")?));
    put("vocab_size", json!(rows_of_embedding(metadata, there("token_embd.weight"))?));
    put("tie_word_embeddings", json!(there("output.weight").is_none()));
    put("attention_bias", json!(there("blk.0.attn_q.bias").is_some()));
    for (field, key) in [("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")] {
        put(field, json!(metadata.number(&format!("tokenizer.ggml.{key}"))?.map(|id| id as i64)));
    }
    rope::read(&keys, arch.stretch, &mut fields)?;
    (arch.more)(&keys, &|name| there(name).is_some(), &mut fields)?;
    keys.refuse_others()?;
    Ok(fields)
}

/// How many rows the embedding has: one for each token.
fn rows_of_embedding(
    metadata: &Metadata,
    embedding: Option<&TensorInfo>,
) -> Result<u64, GgufError> {
    const TENSOR: &str = "token_embd.weight";
    let embedding = embedding.ok_or(GgufError::MissingTensor { tensor: TENSOR })?;
    let &[rows, _] = &embedding.shape[..] else {
        let (tensor, expected) = (TENSOR.to_owned(), "a matrix");
        let (kind, shape) = (embedding.kind, embedding.shape.clone());
        return Err(GgufError::TensorForm { tensor, expected, kind, shape });
    };
    match metadata.texts("tokenizer.ggml.tokens")?.map(|tokens| tokens.len() as u64) {
        Some(tokens) if tokens != rows => Err(GgufError::Tokens { tokens, rows }),
        _ => Ok(rows),
    }
}
