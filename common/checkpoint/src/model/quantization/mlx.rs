//! Quantization as MLX writes it: one format, and what single modules differ in.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::modules::Quantization;
use super::refusal::unsupported;
use crate::encoding::{Affine, Encoding, Fp4, Fp8};
use crate::layout::Packing;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, is_off, wrong};

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
    Ok(Quantization { default, modules, packing: Packing::Mlx })
}

/// The format an object gives; `place` is what it is called in a refusal.
fn format_of(object: &Fields<'_>, place: &str) -> Result<Encoding, ConfigError> {
    if let Some(global) = object.get("global_scale").filter(|global| !is_off(global)) {
        return Err(unsupported(format!("{place}.global_scale"), global));
    }
    let number = |field: &str| {
        let name = || format!("{place}.{field}");
        let value = object.get(field).ok_or_else(|| ConfigError::Missing { field: name() })?;
        let number = value.as_u64().ok_or_else(|| wrong(&name(), "a whole number", value))?;
        Ok::<_, ConfigError>((number, value))
    };
    let (bits, bits_value) = number("bits")?;
    let (group, group_value) = number("group_size")?;
    if let Some(mode) = object.get("mode").filter(|mode| mode.as_str() != Some("affine")) {
        return match mode.as_str().and_then(of_mode) {
            None => Err(unsupported(format!("{place}.mode"), mode)),
            Some((known, ..)) if known != bits => {
                Err(unsupported(format!("{place}.bits"), bits_value))
            }
            Some((_, known, _)) if known != group => {
                Err(unsupported(format!("{place}.group_size"), group_value))
            }
            Some((.., encoding)) => Ok(encoding),
        };
    }
    Affine::new(bits, group).map(Encoding::Affine).ok_or_else(|| match Affine::new(bits, 64) {
        None => unsupported(format!("{place}.bits"), bits_value),
        Some(_) => unsupported(format!("{place}.group_size"), group_value),
    })
}

/// Of a mode beside `affine` the bits, the group, and what it is.
fn of_mode(mode: &str) -> Option<(u64, u64, Encoding)> {
    match mode {
        "mxfp4" => Some((4, 32, Encoding::Fp4(Fp4::Mx))),
        "mxfp8" => Some((8, 32, Encoding::Fp8(Fp8::block(1, 32)?))),
        "nvfp4" => Some((4, 16, Encoding::Fp4(Fp4::Nv))),
        _ => None,
    }
}
