//! What is refused of a configuration's quantization.

use serde_json::{Map, Value};

use crate::model::error::ConfigError;
use crate::model::fields::{is_off, shown};

/// Refuses keys that are switched on and not known: nothing is computed as something else.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`], naming the key.
pub(super) fn refuse_others(
    object: &Map<String, Value>,
    place: &str,
    known: &[&str],
) -> Result<(), ConfigError> {
    let mut others = object.iter().filter(|(key, _)| !known.contains(&key.as_str()));
    match others.find(|(_, value)| !is_off(value)) {
        Some((key, value)) => Err(unsupported(format!("{place}.{key}"), value)),
        None => Ok(()),
    }
}

/// The refusal of what a field has.
pub(super) fn unsupported(field: String, found: &Value) -> ConfigError {
    ConfigError::UnsupportedQuantization { field, found: shown(found) }
}
