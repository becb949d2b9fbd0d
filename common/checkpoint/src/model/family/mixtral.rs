//! Mixtral: Mistral's layers, with a mixture of experts on each.
//!
//! `MixtralForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::mixture::{self, Mixture};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::spec::{AttentionSpec, Op};
use crate::model::whole::ModelSpec;
use crate::model::window::{self, WindowRule};

pub(super) const FAMILY: Family =
    Family { architecture: "MixtralForCausalLM", model_type: "mixtral", read };

const ROTARY: Rotary = Rotary { theta: 1e6, ..Rotary::FULL };
const WINDOWS: WindowRule = WindowRule::All { default: None, but_each: None };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, ROTARY)?;
    decoder.refuse(fields, &["attention_bias", "mlp_bias"])?;
    let mlp = decoder.mlp(fields)?;
    let router = mixture::softmax("block_sparse_moe.gate", true);
    let experts = decoder.experts(fields, Mixture::BLOCK_SPARSE, &mlp, mlp.inner_size, router)?;
    let windows = window::read(fields, FAMILY.architecture, WINDOWS, decoder.num_layers)?;
    let layer = |window| {
        let attention = AttentionSpec { window, ..decoder.attention() };
        decoder.pre_norm(attention, Op::Experts(experts.clone()))
    };
    let layers = windows.into_iter().map(layer).collect();
    Ok(decoder.model(layers, false))
}
