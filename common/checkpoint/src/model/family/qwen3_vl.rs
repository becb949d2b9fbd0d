//! Qwen3-VL without experts: Qwen3's layers, beside a model that sees.
//!
//! `Qwen3VLForConditionalGeneration` in Hugging Face transformers, of which the text model runs.

use super::decoder::Decoder;
use super::entry::Family;
use super::wrapper::Wrapper;
use super::{mlx, qwen};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::AttentionSpec;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Qwen3VLForConditionalGeneration", model_type: "qwen3_vl", read };

/// Of text alone, all three of a position's numbers are the same.
const ROTARY: Rotary = Rotary { theta: 5e5, part: 1.0, partial: false, ..qwen::ROTARY };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let wrapper = match mlx::is_of_mlx(fields) {
        false => qwen::WRAPPER,
        true => qwen::of_mlx(qwen::WRAPPER),
    };
    let architecture = FAMILY.architecture;
    Wrapper { architecture, texts: &[("qwen3_vl_text", read_text)], ..wrapper }.read(fields)
}

fn read_text(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    // Where it is not said, the reference's heads have 128 numbers, whatever the hidden size.
    fields.size("head_dim", limit::HEAD_DIM)?;
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp = decoder.mlp(fields)?;
    let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|path| decoder.head_norm(path));
    let attention = AttentionSpec {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: Some(norms),
        ..decoder.attention()
    };
    let layers = vec![decoder.layer(attention, &mlp); decoder.num_layers];
    Ok(decoder.model(layers, false))
}
