//! Solar Open: Llama's attention, and on every layer a mixture with a network beside it.
//!
//! `SolarOpenForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Routed};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "SolarOpenForCausalLM", model_type: "solar_open", read };

const DEFAULTS: Routed = Routed { shared: 1, renormalise: true, groups: (1, 1), multiplier: 1.0 };
const ROTARY: Rotary = Rotary { theta: 1e6, ..Rotary::PARTIAL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    // Where it is not said, the reference's heads have 128 numbers, whatever the hidden size.
    fields.size("head_dim", limit::HEAD_DIM)?;
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    // Published files say that these are off.
    decoder.refuse(fields, &["use_qk_norm"])?;
    let dense = fields.optional_whole("first_k_dense_replace", 0, limit::LAYERS)?;
    if let Some(dense @ 1..) = dense {
        return Err(decoder.unsupported("first_k_dense_replace", &dense.to_string()));
    }
    let qkv_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let inner_size = fields.size("moe_intermediate_size", limit::INNER)?;
    let mlp = decoder.mlp_of(fields, Activation::Silu, inner_size)?;
    let sparse = mixture::routed(&decoder, fields, &mlp, DEFAULTS)?;
    let layer = decoder.pre_norm(AttentionSpec { qkv_bias, ..decoder.attention() }, sparse);
    let layers = vec![layer; decoder.num_layers];
    Ok(decoder.model(layers, false))
}
