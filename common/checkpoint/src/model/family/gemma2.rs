//! Gemma 2: norms around every operation, a window on every other layer, and bounds of scores and logits.
//!
//! `Gemma2ForCausalLM` in Hugging Face transformers.

use super::decoder::{AROUND, Decoder};
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec};
use crate::model::whole::{LogitsSpec, ModelSpec};
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Gemma2ForCausalLM", model_type: "gemma2", read };

const WINDOWS: WindowRule = WindowRule::All { default: Some(4096), but_each: Some(2) };
/// What queries are scaled with is its inverse square root, where a configuration does not say.
const DEFAULT_SCALAR: f64 = 256.0;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let mut decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    decoder.norm_offset = 1.0;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let most = limit::HEAD_DIM as f64;
    let scalar = fields.optional_number("query_pre_attn_scalar", 0.0, most)?;
    let bound = |field, default| match fields.has(field) {
        true => fields.optional_number(field, 0.0, limit::FACTOR),
        false => Ok(Some(default)),
    };
    let softcap = bound("attn_logit_softcapping", 50.0)?;
    let last = bound("final_logit_softcapping", 30.0)?;
    // Some published files have it under another name, too.
    let other = fields.optional_size("sliding_window_size", limit::POSITIONS)?;
    if let (Some(other), Some(window)) = (other, fields.get("sliding_window"))
        && window.as_u64() != Some(other as u64)
    {
        return Err(decoder.unsupported("sliding_window_size", &other.to_string()));
    }
    let mlp = decoder.mlp_with(fields, Activation::GeluTanh)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let layer = |window| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            scale: scalar.unwrap_or(DEFAULT_SCALAR).powf(-0.5),
            softcap,
            window,
            ..decoder.attention()
        };
        decoder.sandwich(AROUND, attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    let model = decoder.model(layers, true);
    let embedding_multiplier = (model.hidden_size as f64).sqrt() as f32;
    let logits = LogitsSpec { multiplier: 1.0, softcap: last.map(|softcap| softcap as f32) };
    Ok(ModelSpec { embedding_multiplier, logits, ..model })
}
