//! Fields that those who quantize to whole numbers have in common.

use serde_json::{Map, Value};

use super::refusal::unsupported;
use crate::model::error::ConfigError;
use crate::model::fields::wrong;

/// What is there, unless it is null.
fn get<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

/// A whole number from 0 on.
///
/// # Errors
/// [`ConfigError::Missing`], [`ConfigError::WrongType`]
pub(super) fn whole(
    object: &Map<String, Value>,
    place: &str,
    field: &str,
) -> Result<u64, ConfigError> {
    let name = || format!("{place}.{field}");
    let value = get(object, field).ok_or_else(|| ConfigError::Missing { field: name() })?;
    value.as_u64().ok_or_else(|| wrong(&name(), "a whole number", value))
}

/// The `group_size`; `None` for -1, which is all of a row.
///
/// # Errors
/// [`ConfigError::Missing`], [`ConfigError::WrongType`]
pub(super) fn group_of(
    object: &Map<String, Value>,
    place: &str,
) -> Result<Option<u64>, ConfigError> {
    match get(object, "group_size").and_then(Value::as_i64) {
        Some(-1) => Ok(None),
        _ => whole(object, place, "group_size").map(Some),
    }
}

/// A text, or what it is if it is not there.
///
/// # Errors
/// [`ConfigError::WrongType`]
pub(super) fn text<'a>(
    object: &'a Map<String, Value>,
    place: &str,
    field: &str,
    default: &'a str,
) -> Result<&'a str, ConfigError> {
    let Some(value) = get(object, field) else { return Ok(default) };
    value.as_str().ok_or_else(|| wrong(&format!("{place}.{field}"), "a text", value))
}

/// A flag; false if it is not there.
///
/// # Errors
/// [`ConfigError::WrongType`]
pub(super) fn flag(
    object: &Map<String, Value>,
    place: &str,
    field: &str,
) -> Result<bool, ConfigError> {
    let Some(value) = get(object, field) else { return Ok(false) };
    value.as_bool().ok_or_else(|| wrong(&format!("{place}.{field}"), "true or false", value))
}

/// The refusal of a format of so many `bits` that there is not: of its group, if there are formats of so many bits.
pub(super) fn refused(object: &Map<String, Value>, place: &str, bits: u64) -> ConfigError {
    let field = if matches!(bits, 4 | 8) { "group_size" } else { "bits" };
    unsupported(format!("{place}.{field}"), object.get(field).unwrap_or(&Value::Null))
}
