//! StarCoder 2: Llama's order of things with norms that subtract the mean, a network without a gate, and biases everywhere.
//!
//! `Starcoder2ForCausalLM` in Hugging Face transformers.

use super::decoder::{Decoder, Reading};
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{Activation, AttentionSpec, GateUp, MlpSpec, Name, NormKind};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Starcoder2ForCausalLM", model_type: "starcoder2", read };

const READING: Reading =
    Reading { norm_kind: NormKind::Layer, eps: "norm_epsilon", ..Reading::USUAL };
const WINDOWS: WindowRule = WindowRule::All { default: None, but_each: None };
/// What older files say of parts that can only be these.
const WORDS: [(&str, &str); 2] = [("mlp_type", "default"), ("norm_type", "layer_norm")];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let architecture = FAMILY.architecture;
    let mut decoder = Decoder::read_with(fields, architecture, Rotary::FULL, READING)?;
    decoder.norm_bias = true;
    for (field, only) in WORDS {
        decoder.only(fields, field, &[only])?;
    }
    let bias = fields.flag("use_bias")?.unwrap_or(true);
    let mlp = decoder.mlp_with(fields, Activation::GeluTanh)?;
    let mlp = MlpSpec {
        gate_up: GateUp::Plain(Name::Borrowed("mlp.c_fc")),
        down: Name::Borrowed("mlp.c_proj"),
        bias,
        ..mlp
    };
    let windows = window::read(fields, architecture, WINDOWS, decoder.num_layers)?;
    let layer = |window: Option<usize>| {
        let plain = decoder.attention();
        let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, window, ..plain };
        decoder.layer(attention, &mlp)
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, true))
}
