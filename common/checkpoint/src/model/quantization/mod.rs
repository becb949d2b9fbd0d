//! Which modules are stored quantized, and how: `quantization`, as MLX writes it, and `quantization_config`.

mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod fp8;
mod gptq;
mod integers;
mod mlx;
mod modelopt;
mod modules;
mod mxfp4;
mod pack_quantized;
mod refusal;

pub(super) use modelopt::beside;
pub use modules::Quantization;

use serde_json::{Map, Value};

use super::error::ConfigError;
use super::fields::{Fields, wrong};
use refusal::unsupported;

/// Reads the object of a method, which is called `place`.
type Read = fn(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError>;

/// Every `quant_method`. MLX writes none.
const METHODS: &[(&str, Read)] = &[
    ("awq", awq::read),
    ("bitsandbytes", bitsandbytes::read),
    ("compressed-tensors", compressed_tensors::read),
    ("fp8", fp8::read),
    ("gptq", gptq::read),
    (modelopt::METHOD, modelopt::read),
    ("mxfp4", mxfp4::read),
];

/// Where a configuration says it; what comes first counts.
pub(super) const FIELDS: [&str; 2] = ["quantization", "quantization_config"];

/// What is said first, under the field that says it.
fn said<'a>(fields: &Fields<'a>) -> Option<(&'static str, &'a Value)> {
    fields.understand(&FIELDS);
    FIELDS.into_iter().find_map(|field| Some((field, fields.get(field)?)))
}

/// The method that an object says; none is MLX's.
fn method(object: &Map<String, Value>) -> Option<&Value> {
    object.get("quant_method").filter(|method| !method.is_null())
}

/// Whether that is what MLX writes.
pub(super) fn is_of_mlx(fields: &Fields<'_>) -> bool {
    let object = said(fields).and_then(|(_, value)| value.as_object());
    object.is_some_and(|object| method(object).is_none())
}

/// Reads `quantization`, else `quantization_config`, which MLX writes as a copy without a
/// `quant_method`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for every other method, mode, width and group;
/// [`ConfigError`] for what is malformed.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Quantization>, ConfigError> {
    let Some((field, value)) = said(fields) else { return Ok(None) };
    let Some(map) = value.as_object() else {
        return Err(wrong(field, "an object", value));
    };
    let Some(method) = method(map) else {
        return mlx::read(map, field).map(Some);
    };
    let known = METHODS.iter().find(|(name, _)| method.as_str() == Some(name));
    match known {
        Some((_, read)) => read(map, field).map(Some),
        None => Err(unsupported(format!("{field}.quant_method"), method)),
    }
}
