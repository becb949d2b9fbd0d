//! Qwen2 and Qwen2.5: query, key and value always have biases.

use super::decoder::Decoder;
use super::entry::Family;
use super::qwen::WINDOWS;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;
use crate::model::window;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2ForCausalLM", model_type: "qwen2", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    fields.understand(&["attention_bias"]); // They are there whatever it says.
    decoder.refuse(fields, &["mlp_bias"])?;
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let layer = |window| {
        let attention = AttentionSpec { qkv_bias: true, window, ..decoder.attention() };
        decoder.layer(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    let model = decoder.model(layers, false);
    let unchunked = unchunked(fields)?.unwrap_or(model.max_position_embeddings);
    let max_position_embeddings = model.max_position_embeddings.min(unchunked);
    Ok(ModelSpec { max_position_embeddings, ..model })
}

/// The longest sequence that attention in two kinds of chunks (arXiv:2402.17463) leaves as it is, if a model is made
/// for that: longer ones are computed in another way, which the reference does not have.
fn unchunked(fields: &Fields<'_>) -> Result<Option<usize>, ConfigError> {
    const FIELD: &str = "dual_chunk_attention_config";
    let Some(chunks) = fields.object(FIELD)? else { return Ok(None) };
    let chunk_size = chunks.size("chunk_size", limit::POSITIONS)?;
    let local_size = chunks.size("local_size", chunk_size.saturating_sub(1))?;
    let trained = chunks.optional_size("original_max_position_embeddings", limit::POSITIONS)?;
    chunks.refuse_others(FAMILY.architecture).map_err(|error| error.inside(FIELD))?;
    let unchunked = chunk_size - local_size;
    Ok(Some(trained.map_or(unchunked, |trained| trained.min(unchunked))))
}
