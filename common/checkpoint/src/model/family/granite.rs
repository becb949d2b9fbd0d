//! Granite 3: Llama's layers, with multipliers of embeddings, scores, residual branches and logits.
//!
//! `GraniteForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::limit;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, MlpSpec};
use crate::model::whole::{LogitsSpec, ModelSpec};

pub(super) const FAMILY: Family =
    Family { architecture: "GraniteForCausalLM", model_type: "granite", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let Multipliers { embedding, scale, residual, divisor } = multipliers(fields)?;
    let mlp = MlpSpec { bias: mlp_bias, ..decoder.mlp(fields)? };
    let layer = |_| {
        let plain = decoder.attention();
        let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, scale, ..plain };
        let mut layer = decoder.layer(attention, &mlp);
        layer.branches.iter_mut().for_each(|branch| branch.multiplier = residual as f32);
        layer
    };
    let layers = (0..decoder.num_layers).map(layer).collect();
    let model = decoder.model(layers, false);
    let logits = LogitsSpec { multiplier: (1.0 / divisor) as f32, softcap: None };
    Ok(ModelSpec { embedding_multiplier: embedding as f32, logits, ..model })
}

/// What Granite multiplies with.
pub(super) struct Multipliers {
    pub(super) embedding: f64,
    /// Of products of queries and keys.
    pub(super) scale: f64,
    /// Of what a branch adds.
    pub(super) residual: f64,
    /// What logits are divided by.
    pub(super) divisor: f64,
}

/// Each of them is one where that is not said.
///
/// # Errors
/// If one is out of range.
pub(super) fn multipliers(fields: &Fields<'_>) -> Result<Multipliers, ConfigError> {
    let factor = |field| {
        let given = fields.optional_number(field, 0.0, limit::FACTOR)?;
        Ok::<_, ConfigError>(given.unwrap_or(1.0))
    };
    Ok(Multipliers {
        embedding: factor("embedding_multiplier")?,
        scale: factor("attention_multiplier")?,
        residual: factor("residual_multiplier")?,
        divisor: factor("logits_scaling")?,
    })
}
