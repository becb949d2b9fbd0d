//! Granite 3: Llama's layers, with multipliers of embeddings, scores, residual branches and logits.
//!
//! `GraniteForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::multipliers::{Multipliers, multipliers};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
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
