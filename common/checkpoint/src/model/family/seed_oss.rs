//! Seed-OSS: Llama's layers, with biases of queries, keys and values, and of the output by a key of its own.
//!
//! `SeedOssForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "SeedOssForCausalLM", model_type: "seed_oss", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let qkv_bias = fields.flag("attention_bias")?.unwrap_or(true);
    let output_bias = fields.flag("attention_out_bias")?.unwrap_or(false);
    let bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let mlp = MlpSpec { bias, ..decoder.mlp(fields)? };
    let layer =
        |_| decoder.layer(AttentionSpec { qkv_bias, output_bias, ..decoder.attention() }, &mlp);
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
