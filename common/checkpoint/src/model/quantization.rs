//! Which modules are stored quantized: `quantization` as MLX writes it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ConfigError;
use super::fields::{Fields, shown, wrong};
use crate::encoding::{Affine, Encoding, ModuleFormat};

/// Keys of the quantization object that are about all modules; every other key is a module's path.
const GENERAL: [&str; 3] = ["group_size", "bits", "mode"];

/// How the matrices of a checkpoint are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quantization {
    default: Encoding,
    /// What single modules differ in; `None` for those that are not quantized.
    modules: BTreeMap<String, Option<Encoding>>,
}

impl Quantization {
    /// How the module at that path (a tensor's name without `.weight`) is stored.
    pub fn of(&self, module: &str) -> ModuleFormat {
        match self.modules.get(module) {
            None => ModuleFormat::IfPacked(self.default),
            Some(Some(format)) => ModuleFormat::Packed(*format),
            Some(None) => ModuleFormat::Plain,
        }
    }
}

/// Reads `quantization`, else `quantization_config`, which MLX writes as a copy without a
/// `quant_method`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for every other method, mode, width and group;
/// [`ConfigError`] for what is malformed.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Quantization>, ConfigError> {
    fields.understand(&["quantization", "quantization_config"]);
    let mut given = ["quantization", "quantization_config"].into_iter();
    let Some((field, value)) = given.find_map(|field| Some((field, fields.get(field)?))) else {
        return Ok(None);
    };
    let Some(map) = value.as_object() else {
        return Err(wrong(field, "an object", value));
    };
    let object = Fields::new(value)?;
    if let Some(method) = object.get("quant_method") {
        return Err(unsupported(format!("{field}.quant_method"), method));
    }
    let default = format_of(&object, field)?;
    let mut modules = BTreeMap::new();
    for (module, value) in map.iter().filter(|(key, _)| !GENERAL.contains(&key.as_str())) {
        let place = format!("{field}[{module:?}]");
        let format = match value {
            Value::Null => continue,
            Value::Bool(quantized) => quantized.then_some(default),
            Value::Object(_) => Some(format_of(&Fields::new(value)?, &place)?),
            _ => return Err(wrong(&place, "an object or false", value)),
        };
        modules.insert(module.clone(), format);
    }
    Ok(Some(Quantization { default, modules }))
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

fn unsupported(field: String, found: &Value) -> ConfigError {
    ConfigError::UnsupportedQuantization { field, found: shown(found) }
}
