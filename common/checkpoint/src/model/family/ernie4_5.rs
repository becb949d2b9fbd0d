//! ERNIE 4.5, dense: Llama's layers, whose heads rotate neighbour with neighbour.
//!
//! `Ernie4_5ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::rotation::RotaryPairs;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Ernie4_5ForCausalLM", model_type: "ernie4_5", read };

const ROTARY: Rotary = Rotary { theta: 5e5, pairs: RotaryPairs::Neighbours, ..Rotary::FULL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    let bias = fields.flag("use_bias")?.unwrap_or(false);
    let mlp = MlpSpec { bias, ..decoder.mlp(fields)? };
    let layer = |_| {
        let plain = decoder.attention();
        decoder.layer(AttentionSpec { qkv_bias: bias, output_bias: bias, ..plain }, &mlp)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, true))
}
