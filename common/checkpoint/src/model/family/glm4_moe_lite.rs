//! GLM-4.7-Flash: DeepSeek-V3's layers with experts in one group.
//!
//! `Glm4MoeLiteForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::latent::{self, Latent, ROTARY};
use super::mixture::Routed;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Glm4MoeLiteForCausalLM", model_type: "glm4_moe_lite", read };

const LATENT: Latent = Latent {
    architecture: FAMILY.architecture,
    rotary: ROTARY,
    routed: Routed { shared: 1, renormalise: true, groups: (1, 1), multiplier: 1.8 },
    dense_first: 1,
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    latent::read(fields, LATENT)
}
