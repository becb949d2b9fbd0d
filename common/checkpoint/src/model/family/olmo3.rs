//! OLMo 3: OLMo 2's layers, of which most see a window; the others' rotation may be stretched.
//!
//! `Olmo3ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Olmo3ForCausalLM", model_type: "olmo3", read };

const THETA: f64 = 5e5;
const ROTARY: Rotary = Rotary {
    theta: THETA,
    window_theta: Some(WindowTheta { field: "rope_theta", default: THETA }),
    ..Rotary::FULL
};
const WINDOWS: WindowRule = WindowRule::All { default: Some(4096), but_each: Some(4) };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let norms = decoder.whole_norms(["self_attn.q_norm", "self_attn.k_norm"]);
    let layer = |window: Option<usize>| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            window,
            rotation: Some(usize::from(window.is_some())),
            ..decoder.attention()
        };
        decoder.post_norm(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
