//! GLM-4 of 2025, dense: norms around every operation, and a half of each head that rotates, neighbour with neighbour.
//!
//! `Glm4ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::rotation::RotaryPairs;
use crate::model::spec::{AttentionSpec, GateUp, Joined, MlpSpec, Name};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Glm4ForCausalLM", model_type: "glm4", read };

const ROTARY: Rotary = Rotary { part: 0.5, pairs: RotaryPairs::Neighbours, ..Rotary::PARTIAL };
/// Before and after attention, before and after the network.
const NORMS: [&str; 4] = [
    "input_layernorm",
    "post_self_attn_layernorm",
    "post_attention_layernorm",
    "post_mlp_layernorm",
];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    let qkv_bias = fields.flag("attention_bias")?.unwrap_or(true);
    let gate_up = GateUp::Gated(Joined::Fused(Name::Borrowed("mlp.gate_up_proj")));
    let mlp = MlpSpec { gate_up, ..decoder.mlp(fields)? };
    let layer =
        |_| decoder.sandwich(NORMS, AttentionSpec { qkv_bias, ..decoder.attention() }, &mlp);
    let layers = (0..decoder.num_layers).map(layer).collect();
    Ok(decoder.model(layers, false))
}
