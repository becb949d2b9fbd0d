//! Llama 2, 3, 3.1, 3.2 and what is shaped like them.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "LlamaForCausalLM", model_type: "llama", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    match fields.text("activation")? {
        // What Falcon 3 calls SiLU and its gate, beside the usual field.
        None | Some("swiglu") => {}
        Some(other) => return Err(decoder.unsupported("activation", other)),
    }
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let mlp = MlpSpec { bias: mlp_bias, ..decoder.mlp(fields)? };
    let rule = WindowRule::Never;
    let windows = window::read(fields, FAMILY.architecture, rule, decoder.num_layers)?;
    let layer = |window| {
        let plain = decoder.attention();
        let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, window, ..plain };
        decoder.layer(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
