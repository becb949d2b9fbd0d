//! EXAONE 4: norms after operations and of each head; where some layers see a window, the others know no positions.
//!
//! `Exaone4ForCausalLM` in Hugging Face transformers.

use super::decoder::Decoder;
use super::entry::Family;
use super::exaone;
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::rope::Rotary;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Exaone4ForCausalLM", model_type: "exaone4", read };

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    let decoder = Decoder::read(fields, FAMILY.architecture, Rotary::FULL)?;
    let mlp = decoder.mlp(fields)?;
    let attention = exaone::attention(&decoder, fields)?;
    let layers = attention.into_iter().map(|attention| decoder.post_norm(attention, &mlp));
    let layers = layers.collect();
    Ok(decoder.model(layers, false))
}
