//! Gemma 3, text: norms around every operation, a window on most layers, and a rotation for each kind of them.
//!
//! `Gemma3TextModel` in Hugging Face transformers.

use super::decoder::{AROUND, Decoder};
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::{Activation, AttentionSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Gemma3ForCausalLM", model_type: "gemma3_text", read };

const WINDOW_THETA: WindowTheta = WindowTheta { field: "rope_local_base_freq", default: 1e4 };
const ROTARY: Rotary = Rotary { theta: 1e6, window_theta: Some(WINDOW_THETA), ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: Some(4096), but_each: Some(6) };
/// What queries are scaled with is its inverse square root, where a configuration does not say.
const DEFAULT_SCALAR: f64 = 256.0;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let mut decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.norm_offset = 1.0;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let most = limit::HEAD_DIM as f64;
    let scalar = fields.optional_number("query_pre_attn_scalar", 0.0, most)?;
    let mlp = decoder.mlp_with(fields, Activation::GeluTanh)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let layer = |window: Option<usize>| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            scale: scalar.unwrap_or(DEFAULT_SCALAR).powf(-0.5),
            window,
            rotation: Some(usize::from(window.is_some())),
            ..decoder.attention()
        };
        decoder.sandwich(AROUND, attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    let model = decoder.model(layers, true);
    let embedding_multiplier = (model.hidden_size as f64).sqrt() as f32;
    Ok(ModelSpec { embedding_multiplier, ..model })
}
