//! dots.llm1: norms of each head of queries and keys; after the first layers a mixture with a network beside it.
//!
//! `Dots1ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Routed};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Dots1ForCausalLM", model_type: "dots1", read };

const DEFAULTS: Routed = Routed { shared: 0, renormalise: false, groups: (1, 1), multiplier: 1.0 };
const WINDOWS: WindowRule = WindowRule::Beyond { default_window: 4096, default_first: 62 };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let mlp = decoder.mlp(fields)?;
    let dense = fields.optional_whole("first_k_dense_replace", 0, limit::LAYERS)?.unwrap_or(0);
    let sparse = mixture::routed(&decoder, fields, &mlp, DEFAULTS)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let layer = |(index, window)| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            qk_norm: Some(norms.clone()),
            window,
            ..decoder.attention()
        };
        let op = if index < dense { Op::Mlp(mlp.clone()) } else { sparse.clone() };
        decoder.pre_norm(attention, op)
    };
    let layers = windows.into_iter().enumerate().map(layer).collect();
    Ok(decoder.model(layers, false))
}
