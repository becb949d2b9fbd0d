//! Qwen3.5, 3.6 and 3.8 without experts: a gated delta rule on most layers, gated attention on the others.
//!
//! `Qwen3_5ForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use super::entry::Family;
use super::hybrid;
use super::qwen3_next;
use super::wrapper::Wrapper;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::recurrent::DeltaInputs;
use crate::model::rope::Rotary;
use crate::model::spec::{Name, Op};
use crate::model::whole::ModelSpec;

/// The text model by itself.
pub(super) const TEXT: Family =
    Family { architecture: "Qwen3_5ForCausalLM", model_type: "qwen3_5_text", read: read_text };
pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3_5ForConditionalGeneration", model_type: "qwen3_5", read };

/// Of pictures and of sounds: of text alone, all three of its positions are the same.
pub(super) const ROTARY: Rotary = Rotary {
    theta: 1e7,
    part: 0.25,
    beside: &["mrope_section", "mrope_interleaved"],
    ..Rotary::PARTIAL
};
/// How files of the Hub have the text model beside others.
pub(super) const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "model.",
    prefix: "model.language_model.",
    texts: &[("qwen3_5_text", read_text)],
    others: &["model.visual."],
    tied: false,
    fields: &[
        "image_token_id",
        "language_model_only",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ],
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    match hybrid::is_of_mlx(fields) {
        false => WRAPPER.read(fields),
        true => Wrapper { texts: &[("qwen3_5_text", read_mlx)], ..of_mlx(WRAPPER) }.read(fields),
    }
}

/// How MLX's files have it.
pub(super) fn of_mlx(wrapper: Wrapper) -> Wrapper {
    let others = &["vision_tower.", "model.visual.", "language_model.mtp."];
    Wrapper { replaced: "", prefix: "language_model.", others, ..wrapper }
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, hybrid::is_of_mlx(fields))
}

fn read_mlx(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, true)
}

fn read_with(fields: &Fields<'_>, mlx: bool) -> Result<ModelSpec, ConfigError> {
    let decoder = qwen3_next::decoder(fields, TEXT.architecture, ROTARY, mlx)?;
    decoder.require(fields, &["attn_output_gate"])?;
    decoder.only(fields, "output_gate_type", &["swish"])?;
    understand(fields);
    let mlp = decoder.mlp(fields)?;
    qwen3_next::model(decoder, fields, inputs(), mlx, |_| Op::Mlp(mlp.clone()))
}

/// Of layers that predict further tokens, which are not used, and what is always so here.
pub(super) fn understand(fields: &Fields<'_>) {
    fields.understand(&[
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
    ]);
}

/// The modules of the delta rule.
pub(super) fn inputs() -> DeltaInputs {
    DeltaInputs::Joined {
        qkv: Name::Borrowed("linear_attn.in_proj_qkv"),
        gate: Name::Borrowed("linear_attn.in_proj_z"),
        correction: Name::Borrowed("linear_attn.in_proj_b"),
        decay: Name::Borrowed("linear_attn.in_proj_a"),
    }
}
