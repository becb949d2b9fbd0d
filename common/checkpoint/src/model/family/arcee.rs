//! Arcee (AFM-4.5B): Llama's attention, and a network without a gate.
//!
//! `ArceeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, GateUp, MlpSpec, Name};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "ArceeForCausalLM", model_type: "arcee", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let gate_up = GateUp::Plain(Name::Borrowed("mlp.up_proj"));
    let mlp = decoder.mlp_with(fields, Activation::Relu2)?;
    let mlp = MlpSpec { gate_up, bias: mlp_bias, ..mlp };
    let layer = |_| {
        let plain = decoder.attention();
        decoder.layer(AttentionSpec { qkv_bias: bias, output_bias: bias, ..plain }, &mlp)
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
