//! Qwen3.5, 3.6 and 3.8 without experts: a gated delta rule on most layers, gated attention on the others.
//!
//! `Qwen3_5ForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use super::entry::Family;
use super::wrapper::Wrapper;
use super::{gated_delta, mlx, qwen};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::spec::Op;
use crate::model::whole::ModelSpec;

/// The text model by itself.
pub(super) const TEXT: Family =
    Family { architecture: "Qwen3_5ForCausalLM", model_type: "qwen3_5_text", read: read_text };
pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3_5ForConditionalGeneration", model_type: "qwen3_5", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let architecture = FAMILY.architecture;
    let wrapper = match mlx::is_of_mlx(fields) {
        false => Wrapper { texts: &[("qwen3_5_text", read_text)], ..qwen::WRAPPER },
        true => Wrapper { texts: &[("qwen3_5_text", read_mlx)], ..qwen::of_mlx(qwen::WRAPPER) },
    };
    Wrapper { architecture, ..wrapper }.read(fields)
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, mlx::is_of_mlx(fields))
}

fn read_mlx(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, true)
}

fn read_with(fields: &Fields<'_>, mlx: bool) -> Result<ModelSpec, ConfigError> {
    let decoder = gated_delta::decoder(fields, TEXT.architecture, qwen::ROTARY, mlx)?;
    decoder.require(fields, &["attn_output_gate"])?;
    decoder.only(fields, "output_gate_type", &["swish"])?;
    qwen::understand(fields);
    let mlp = decoder.mlp(fields)?;
    gated_delta::model(decoder, fields, qwen::inputs(), mlx, |_| Op::Mlp(mlp.clone()))
}
