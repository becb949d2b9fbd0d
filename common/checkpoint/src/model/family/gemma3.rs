//! Gemma 3: norms around every operation, a window on most layers, and a rotation for each kind of them. From 4B on a text
//! model beside one that sees, of which the text model runs.
//!
//! `Gemma3TextModel` and `Gemma3ForConditionalGeneration` in Hugging Face transformers.

use serde_json::{Map, Value, json};

use super::decoder::{AROUND, Decoder};
use super::entry::Family;
use super::wrapper::{AS_MODULES, EYES, Wrapper};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::{Rotary, WindowTheta};
use crate::model::spec::{Activation, AttentionSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

/// The text model by itself.
pub(super) const TEXT: Family =
    Family { architecture: "Gemma3ForCausalLM", model_type: "gemma3_text", read: read_text };
pub(super) const FAMILY: Family =
    Family { architecture: "Gemma3ForConditionalGeneration", model_type: "gemma3", read };

const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "",
    prefix: "language_model.",
    other_names: AS_MODULES,
    defaults,
    texts: &[(TEXT.model_type, read_text)],
    others: EYES,
    tied: true,
    fields: &[
        "boi_token_index",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
    ],
};

const WINDOW_THETA: WindowTheta = WindowTheta { field: "rope_local_base_freq", default: 1e4 };
const ROTARY: Rotary = Rotary { theta: 1e6, window_theta: Some(WINDOW_THETA), ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: Some(4096), but_each: Some(6) };
/// What queries are scaled with is its inverse square root, where a configuration does not say.
const DEFAULT_SCALAR: f64 = 256.0;

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    WRAPPER.read(fields)
}

/// What `Gemma3TextConfig` has that a published `text_config` leaves out; the others of its defaults stand where they are read.
fn defaults() -> Map<String, Value> {
    let sizes = [
        ("vocab_size", 262_208),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 26),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("max_position_embeddings", 131_072),
    ];
    let sizes = sizes.into_iter().map(|(field, size)| (field.to_owned(), json!(size)));
    sizes.chain([("rms_norm_eps".to_owned(), json!(1e-6))]).collect()
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let mut decoder = Decoder::read(fields, TEXT.architecture, ROTARY)?;
    decoder.norm_offset = 1.0;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let most = limit::HEAD_DIM as f64;
    let scalar = fields.optional_number("query_pre_attn_scalar", 0.0, most)?;
    let mlp = decoder.mlp_with(fields, Activation::GeluTanh)?;
    let windows = window::read(fields, TEXT.architecture, WINDOWS, decoder.num_layers)?;
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
