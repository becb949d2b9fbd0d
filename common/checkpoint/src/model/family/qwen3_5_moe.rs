//! Qwen3.5 and 3.6 with experts: its layers, each with a mixture.
//!
//! `Qwen3_5MoeForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use super::entry::Family;
use super::hybrid;
use super::qwen3_5::{self, ROTARY, WRAPPER};
use super::qwen3_next;
use super::wrapper::Wrapper;
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
    let wrapper = Wrapper {
        architecture: FAMILY.architecture,
        texts: &[("qwen3_5_moe_text", read_text)],
        ..WRAPPER
    };
    match hybrid::is_of_mlx(fields) {
        false => wrapper.read(fields),
        true => {
            let texts = &[("qwen3_5_moe_text", read_mlx as _)];
            Wrapper { texts, ..qwen3_5::of_mlx(wrapper) }.read(fields)
        }
    }
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, hybrid::is_of_mlx(fields))
}

fn read_mlx(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    read_with(fields, true)
}

fn read_with(fields: &Fields<'_>, mlx: bool) -> Result<ModelSpec, ConfigError> {
    let decoder = qwen3_next::decoder(fields, TEXT.architecture, ROTARY, mlx)?;
    decoder.require(fields, &["attn_output_gate", "norm_topk_prob"])?;
    decoder.only(fields, "output_gate_type", &["swish"])?;
    qwen3_5::understand(fields);
    let sparse = qwen3_next::mixture(&decoder, fields, true)?;
    qwen3_next::model(decoder, fields, qwen3_5::inputs(), mlx, |_| sparse.clone())
}
