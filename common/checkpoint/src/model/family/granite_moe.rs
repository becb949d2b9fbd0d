//! Granite 3 with experts: Granite's layers and multipliers, and a mixture on each.
//!
//! `GraniteMoeForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use super::multipliers::{Multipliers, multipliers};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::{LogitsSpec, ModelSpec};

pub(super) const FAMILY: Family =
    Family { architecture: "GraniteMoeForCausalLM", model_type: "granitemoe", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    let Multipliers { embedding, scale, residual, divisor } = multipliers(fields)?;
    let mlp = decoder.mlp(fields)?;
    let router = mixture::softmax("block_sparse_moe.router.layer", true);
    let experts = decoder.experts(fields, Mixture::GRANITE, &mlp, mlp.inner_size, router)?;
    let plain = decoder.attention();
    let attention = AttentionSpec { qkv_bias: bias, output_bias: bias, scale, ..plain };
    let mut layer = decoder.pre_norm(attention, Op::Experts(experts));
    layer.branches.iter_mut().for_each(|branch| branch.multiplier = residual as f32);
    let layers = vec![layer; decoder.num_layers];
    let model = decoder.model(layers, false);
    let logits = LogitsSpec { multiplier: (1.0 / divisor) as f32, softcap: None };
    Ok(ModelSpec { embedding_multiplier: embedding as f32, logits, ..model })
}
