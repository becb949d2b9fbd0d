//! Cohere 2 (Command R7B, Command A): one norm, after which attention and network compute side by side; where a layer sees
//! everything, it knows no positions.
//!
//! `Cohere2ForCausalLM` in Hugging Face transformers.

use super::decoder::{Decoder, Reading};
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::rotation::RotaryPairs;
use crate::model::spec::{AttentionSpec, LayerSpec, NormKind, Op};
use crate::model::whole::{LogitsSpec, ModelSpec};
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "Cohere2ForCausalLM", model_type: "cohere2", read };

const ROTARY: Rotary = Rotary { pairs: RotaryPairs::Neighbours, ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: Some(4096), but_each: Some(4) };
const READING: Reading =
    Reading { norm_kind: NormKind::Layer, eps: "layer_norm_eps", ..Reading::USUAL };
/// What older files say beside what counts, and what it can only be.
const WORDS: [(&str, &str); 2] =
    [("order_of_interleaved_layers", "local_attn_first"), ("position_embedding_type", "rope_gptj")];

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let architecture = FAMILY.architecture;
    let decoder = Decoder::read_with(fields, architecture, ROTARY, READING)?;
    for (field, only) in WORDS {
        match fields.text(field)? {
            Some(other) if other != only => return Err(decoder.unsupported(field, other)),
            _ => {}
        }
    }
    fields.understand(&["layer_switch", "rotary_pct"]); // As layer_types, and of a part that is always whole.
    fields.understand(&["use_embedding_sharing", "use_gated_activation", "use_parallel_block"]);
    fields.understand(&["use_parallel_embedding"]);
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let multiplier = fields.optional_number("logit_scale", 0.0, limit::FACTOR)?.unwrap_or(0.0625);
    let mlp = decoder.mlp(fields)?;
    let windows = window::read(fields, architecture, WINDOWS, decoder.num_layers)?;
    let layer = |window: Option<usize>| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            rotation: window.map(|_| 0),
            window,
            ..decoder.attention()
        };
        let both = Op::Sum(vec![Op::Attention(attention), Op::Mlp(mlp.clone())]);
        LayerSpec::pre_norm([(decoder.norm("input_layernorm"), both)])
    };
    let layers = windows.into_iter().map(layer).collect();
    let logits = LogitsSpec { multiplier: multiplier as f32, softcap: None };
    Ok(ModelSpec { logits, ..decoder.model(layers, true) })
}
