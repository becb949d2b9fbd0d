//! Mistral: a window on every layer in early versions. The class default of the window is 4096.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "MistralForCausalLM", model_type: "mistral", read };

pub(super) fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    decoder.refuse(fields, &["attention_bias", "mlp_bias"])?;
    let mlp = decoder.mlp(fields)?;
    let rule = WindowRule::All { default: Some(4096), but_each: None };
    let windows = window::read(fields, FAMILY.architecture, rule, decoder.num_layers)?;
    let layer = |window| decoder.layer(AttentionSpec { window, ..decoder.attention() }, &mlp);
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
