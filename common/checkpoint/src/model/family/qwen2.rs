//! Qwen2 and Qwen2.5: query, key and value always have biases.

use super::Family;
use super::decoder::Decoder;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::window::{self, WindowRule};
use crate::model::{AttentionSpec, ConfigError, ModelSpec};

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen2ForCausalLM", model_type: "qwen2", read };

/// When the configuration gives no `layer_types`, in Qwen2 and Qwen3.
pub(super) const WINDOW: WindowRule =
    WindowRule::FromLayer { default_window: 4096, default_first: 28 };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    fields.understand(&["attention_bias"]); // They are there whatever it says.
    decoder.refuse(fields, &["mlp_bias"])?;
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOW, decoder.num_layers)?;
    let layer = |window| {
        let attention = AttentionSpec { qkv_bias: true, window, ..decoder.attention() };
        decoder.layer(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
