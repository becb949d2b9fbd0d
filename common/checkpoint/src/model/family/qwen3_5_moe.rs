//! Qwen3.5 and 3.6 with experts: its layers, each with a mixture.
//!
//! `Qwen3_5MoeForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use super::entry::Family;
use super::wrapper::Wrapper;
use super::{gated_delta, mlx, qwen};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

/// The text model by itself.
pub(super) const TEXT: Family = Family {
    architecture: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    read: read_text,
};
pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3_5MoeForConditionalGeneration", model_type: "qwen3_5_moe", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let architecture = FAMILY.architecture;
    let wrapper = match mlx::is_of_mlx(fields) {
        false => Wrapper { texts: &[("qwen3_5_moe_text", read_text)], ..qwen::WRAPPER },
        true => Wrapper { texts: &[("qwen3_5_moe_text", read_mlx)], ..qwen::of_mlx(qwen::WRAPPER) },
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
    decoder.require(fields, &["attn_output_gate", "norm_topk_prob"])?;
    decoder.only(fields, "output_gate_type", &["swish"])?;
    qwen::understand(fields);
    let sparse = gated_delta::mixture(&decoder, fields, true)?;
    gated_delta::model(decoder, fields, qwen::inputs(), mlx, |_| sparse.clone())
}
