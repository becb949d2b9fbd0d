//! Mistral 3 (Ministral 3, Mistral Small 3.1 and 3.2, Devstral): a text model beside one that sees, of which the text model runs.
//!
//! `Mistral3ForConditionalGeneration` in Hugging Face transformers.

use serde_json::Map;

use super::entry::Family;
use super::wrapper::{AS_MODULES, EYES, Wrapper};
use super::{ministral3, mistral};
use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

pub(super) const FAMILY: Family =
    Family { architecture: "Mistral3ForConditionalGeneration", model_type: "mistral3", read };

const WRAPPER: Wrapper = Wrapper {
    architecture: FAMILY.architecture,
    replaced: "",
    prefix: "language_model.",
    other_names: AS_MODULES,
    defaults: Map::new,
    texts: &[("ministral3", ministral3::read), ("mistral", mistral::read)],
    others: EYES,
    tied: true,
    fields: &[
        "image_token_index",
        "image_token_id",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "spatial_merge_size",
        "vision_config",
        "vision_feature_layer",
    ],
};

fn read(fields: &Fields<'_>) -> Result<ModelSpec, ConfigError> {
    WRAPPER.read(fields)
}
