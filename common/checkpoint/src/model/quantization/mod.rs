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

/// Reads `quantization`, else `quantization_config`, which MLX writes as a copy without a
/// `quant_method`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for every other method, mode, width and group;
/// [`ConfigError`] for what is malformed.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Quantization>, ConfigError> {
    fields.understand(&FIELDS);
    let mut given = FIELDS.into_iter();
    let Some((field, value)) = given.find_map(|field| Some((field, fields.get(field)?))) else {
        return Ok(None);
    };
    let Some(map) = value.as_object() else {
        return Err(wrong(field, "an object", value));
    };
    let Some(method) = map.get("quant_method").filter(|method| !method.is_null()) else {
        return mlx::read(map, field).map(Some);
    };
    let known = METHODS.iter().find(|(name, _)| method.as_str() == Some(name));
    match known {
        Some((_, read)) => read(map, field).map(Some),
        None => Err(unsupported(format!("{field}.quant_method"), method)),
    }
}
