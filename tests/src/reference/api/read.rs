//! What a description has to have at some places.

use serde_json::Value;

/// A text that has to be there.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// The name of what a reference leads to.
pub(super) fn name(reference: &str) -> &str {
    reference.rsplit('/').next().expect("a path has an end")
}
