//! What this project knows of one architecture.

use crate::model::error::ConfigError;
use crate::model::fields::Fields;
use crate::model::whole::ModelSpec;

/// One architecture that this project runs.
#[derive(Debug)]
pub struct Family {
    /// As in `architectures` of `config.json`.
    pub architecture: &'static str,
    /// As in `model_type` of `config.json`.
    pub model_type: &'static str,
    /// Asks for every field that it understands.
    pub(in crate::model) read: fn(&Fields<'_>) -> Result<ModelSpec, ConfigError>,
}
