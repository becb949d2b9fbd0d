//! Ministral 3: Mistral's layers without windows, stretched by YaRN, and queries that grow with their position.
//!
//! `Ministral3ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, PositionScale};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Ministral3ForCausalLM", model_type: "ministral3", read };

const BETA: &str = "llama_4_scaling_beta";
/// The length is the one that the configuration itself has.
const BESIDE: &[&str] = &[BETA, "max_position_embeddings"];
const ROTARY: Rotary = Rotary { theta: 1e6, beside: BESIDE, ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: None, but_each: None };

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.refuse(fields, &["attention_bias", "mlp_bias"])?;
    let missing = |field: &str| ConfigError::Missing { field: field.to_owned() };
    // Without them the reference has a stretch of its own.
    let rotation = fields.object("rope_parameters")?.ok_or_else(|| missing("rope_parameters"))?;
    let is_zero = rotation.get(BETA).is_some_and(|beta| beta.as_f64() == Some(0.0));
    let query_scale = match is_zero {
        true => None,
        false => rotation.optional_number(BETA, 0.0, limit::FACTOR)?,
    };
    let query_scale = match query_scale {
        None => None,
        Some(beta) => {
            let span = "original_max_position_embeddings";
            let span = rotation.number(span, 0.0, limit::FACTOR)?;
            Some(PositionScale { beta, span, first: 0 })
        }
    };
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let layer =
        |window| decoder.layer(AttentionSpec { query_scale, window, ..decoder.attention() }, &mlp);
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
