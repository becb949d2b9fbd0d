//! Apertus: Llama's attention with norms of queries and keys, and a network without a gate whose activation has numbers of its
//! own.
//!
//! `ApertusForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, GateUp, LayerSpec, MlpSpec, Name, Op};
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "ApertusForCausalLM", model_type: "apertus", read };

const ROTARY: Rotary = Rotary { theta: 12e6, ..Rotary::FULL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.refuse(fields, &["mlp_bias", "post_norm"])?;
    decoder.require(fields, &["qk_norm"])?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: Some(["self_attn.q_norm", "self_attn.k_norm"].map(|it| decoder.head_norm(it))),
        ..decoder.attention()
    };
    let mlp = MlpSpec {
        gate_up: GateUp::Plain(Name::Borrowed("mlp.up_proj")),
        activation_numbers: Some(Name::Borrowed("mlp.act_fn.")),
        ..decoder.mlp_with(fields, Activation::Xielu)?
    };
    let layer = LayerSpec::pre_norm([
        (decoder.norm("attention_layernorm"), Op::Attention(attention)),
        (decoder.norm("feedforward_layernorm"), Op::Mlp(mlp)),
    ]);
    let layers = vec![layer; decoder.num_layers];
    Ok(decoder.model(layers, false))
}
