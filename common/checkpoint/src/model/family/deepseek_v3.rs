//! DeepSeek-V3 and R1, and Kimi K2, which has their layers: latent attention, and experts in groups.
//!
//! `DeepseekV3ForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::latent::{self, Latent, ROTARY};
use super::mixture::Routed;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "DeepseekV3ForCausalLM", model_type: "deepseek_v3", read };
/// Under the same class.
pub(super) const KIMI_K2: Family = Family { model_type: "kimi_k2", ..FAMILY };

const LATENT: Latent = Latent {
    architecture: FAMILY.architecture,
    rotary: ROTARY,
    routed: Routed::DEEPSEEK_V3,
    dense_first: 3,
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    fields.understand(&["num_mtp_layers"]); // They come after the last layer.
    latent::read(fields, LATENT)
}
