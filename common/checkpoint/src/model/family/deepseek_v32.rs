//! DeepSeek-V3.2: DeepSeek-V3's layers, in which an indexer chooses the positions that a row sees once there are more than a
//! number of them. Up to there it chooses all, so that contexts of that length are computed without it.
//!
//! `DeepseekV32ForCausalLM` in Hugging Face transformers.

use super::entry::Family;
use super::latent::{self, Latent, ROTARY};
use super::mixture::Routed;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "DeepseekV32ForCausalLM", model_type: "deepseek_v32", read };

const LATENT: Latent = Latent {
    architecture: FAMILY.architecture,
    rotary: ROTARY,
    routed: Routed::DEEPSEEK_V3,
    dense_first: 3,
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    latent::read_indexed(fields, LATENT)
}
