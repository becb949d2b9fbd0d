//! LFM2 and LFM2.5: gated short convolutions on most layers, attention on the others.
//!
//! `Lfm2ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::lfm;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::spec::Op;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Lfm2ForCausalLM", model_type: "lfm2", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = lfm::decoder(fields, FAMILY.architecture)?;
    let mlp = lfm::network(&decoder, fields, adjusted(&decoder, fields)?)?;
    lfm::model(decoder, fields, |_| Op::Mlp(mlp.clone()))
}

/// The width of networks, which is less than what is said of it unless that is said.
fn adjusted(decoder: &Decoder, fields: &Fields<'_>) -> Result<usize, ConfigError> {
    let width = match fields.optional_size("block_ff_dim", limit::INNER)? {
        Some(older) => older,
        None => decoder.inner_size()?,
    };
    let multiple = fields.optional_size("block_multiple_of", limit::INNER)?.unwrap_or(256);
    let factor = fields.optional_number("block_ffn_dim_multiplier", 0.0, limit::FACTOR)?;
    if !fields.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(width);
    }
    let width = 2 * width / 3;
    // What is said not to be multiplied is not rounded, either.
    if fields.has("block_ffn_dim_multiplier") && factor.is_none() {
        return Ok(width);
    }
    let width = width as f64 * factor.unwrap_or(1.0);
    Ok((width as usize).min(limit::INNER).next_multiple_of(multiple))
}
