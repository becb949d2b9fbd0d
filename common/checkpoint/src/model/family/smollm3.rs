//! SmolLM3: Llama's layers, of which each fourth knows no positions.
//!
//! `SmolLM3ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "SmolLM3ForCausalLM", model_type: "smollm3", read };

const ROTARY: Rotary = Rotary { theta: 2e6, ..Rotary::FULL };
/// Which layers have no rotation, where no list says it: each so many.
const DEFAULT_INTERVAL: usize = 4;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    // The reference has windows only where there is no rotation; no published file has one.
    decoder.refuse(fields, &["use_sliding_window"])?;
    window::read(fields, FAMILY.architecture, WindowRule::Never, decoder.num_layers)?;
    let mlp = MlpSpec { bias: mlp_bias, ..decoder.mlp(fields)? };
    let rotates = rotates(fields, decoder.num_layers)?;
    let layer = |rotates: bool| {
        let rotation = rotates.then_some(0);
        let plain = decoder.attention();
        let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, rotation, ..plain };
        decoder.layer(attention, &mlp)
    };
    let layers = rotates.into_iter().map(layer).collect();
    Ok(decoder.model(layers, true))
}

/// Whether each layer rotates queries and keys: 1 in `no_rope_layers`, whatever its name says.
fn rotates(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ConfigError> {
    const LIST: &str = "no_rope_layers";
    let interval = fields.optional_size("no_rope_layer_interval", limit::LAYERS)?;
    let interval = interval.unwrap_or(DEFAULT_INTERVAL);
    let Some(value) = fields.get(LIST) else {
        return Ok((1..=num_layers).map(|number| !number.is_multiple_of(interval)).collect());
    };
    let said = fields.wholes(LIST, 1)?;
    if said.len() != num_layers {
        return Err(wrong(LIST, "a number for each layer", value));
    }
    Ok(said.into_iter().map(|said| said == 1).collect())
}
