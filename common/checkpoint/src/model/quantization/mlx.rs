//! Quantization as MLX writes it: one format, and what single modules differ in.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Quantization, unsupported};
use crate::encoding::{Affine, Encoding};
use crate::layout::{Mlx, Packing};
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};

/// Keys of the quantization object that are about all modules; every other key is a module's path.
const GENERAL: [&str; 3] = ["group_size", "bits", "mode"];

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for every other mode, width and group; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    let default = format_of(&Fields::of(object), place)?;
    let mut modules = BTreeMap::new();
    let of_modules = object.iter().filter(|(key, _)| !GENERAL.contains(&key.as_str()));
    for (module, value) in of_modules {
        let place = format!("{place}[{module:?}]");
        let format = match value {
            Value::Null => continue,
            Value::Bool(quantized) => quantized.then_some(default),
            Value::Object(object) => Some(format_of(&Fields::of(object), &place)?),
            _ => return Err(wrong(&place, "an object or false", value)),
        };
        modules.insert(module.clone(), format);
    }
    Ok(Quantization { default, modules, packing: Packing::Mlx(Mlx) })
}

/// The format an object gives; `place` is what it is called in a refusal.
fn format_of(object: &Fields<'_>, place: &str) -> Result<Encoding, ConfigError> {
    if let Some(mode) = object.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
        return Err(unsupported(format!("{place}.mode"), mode));
    }
    let number = |field: &str| {
        let name = || format!("{place}.{field}");
        let value = object.get(field).ok_or_else(|| ConfigError::Missing { field: name() })?;
        let number = value.as_u64().ok_or_else(|| wrong(&name(), "a whole number", value))?;
        Ok::<_, ConfigError>((number, value))
    };
    let (bits, bits_value) = number("bits")?;
    let (group, group_value) = number("group_size")?;
    Affine::new(bits, group).map(Encoding::Affine).ok_or_else(|| match Affine::new(bits, 64) {
        None => unsupported(format!("{place}.bits"), bits_value),
        Some(_) => unsupported(format!("{place}.group_size"), group_value),
    })
}
