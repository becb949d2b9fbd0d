//! gpt-oss: sinks beside scores, windows on every other layer, and experts with biases behind a clamped gate.
//!
//! `GptOssForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, ClampedGate, MlpSpec, Name, Op, RouterScores, RouterSpec};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "GptOssForCausalLM", model_type: "gpt_oss", read };

const ROTARY: Rotary = Rotary { theta: 150_000.0, ..Rotary::FULL };
/// The first layer has one.
const WINDOWS: WindowRule = WindowRule::All { default: Some(128), but_each: Some(2) };
const MIXTURE: Mixture = Mixture { count: &["num_local_experts", "num_experts"], ..Mixture::USUAL };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    if fields.object("rope_parameters")?.is_none() && fields.object("rope_scaling")?.is_none() {
        // The reference has a stretch of its own then.
        return Err(ConfigError::Missing { field: "rope_parameters".to_owned() });
    }
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    // The authors' own program's names of what has another one beside it.
    fields.understand(&["experts_per_token", "initial_context_length"]);
    let bias = fields.flag("attention_bias")?.unwrap_or(true);
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let number = |field: &str, default: f64| {
        let given = fields.optional_number(field, 0.0, limit::FACTOR)?;
        Ok::<_, ConfigError>(given.unwrap_or(default) as f32)
    };
    let (alpha, limit) = (number("swiglu_alpha", 1.702)?, number("swiglu_limit", 7.0)?);
    let clamped = Some(ClampedGate { alpha, limit });
    let mlp = MlpSpec { bias: true, clamped, ..decoder.mlp(fields)? };
    let router = RouterSpec {
        bias: true,
        scores: RouterScores::SoftmaxOfChosen,
        ..mixture::softmax("mlp.router", false)
    };
    let experts = decoder.experts(fields, MIXTURE, &mlp, mlp.inner_size, router)?;
    let layer = |window| {
        let attention = AttentionSpec {
            qkv_bias: bias,
            output_bias: bias,
            sinks: Some(Name::Borrowed("self_attn.sinks")),
            window,
            ..decoder.attention()
        };
        decoder.pre_norm(attention, Op::Experts(experts.clone()))
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
