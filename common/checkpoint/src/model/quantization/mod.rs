//! Which modules are stored quantized, and how: `quantization`, as MLX writes it, and `quantization_config`.

mod awq;
mod gptq;
mod integers;
mod mlx;
mod pack_quantized;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::ConfigError;
use super::fields::{Fields, shown, wrong};
use super::whole::ModelSpec;
use crate::encoding::{Encoding, ModuleFormat};
use crate::layout::Packing;

/// Reads the object of a method, which is called `place`.
type Read = fn(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError>;

/// Every `quant_method`. MLX writes none.
const METHODS: &[(&str, Read)] =
    &[("awq", awq::read), ("compressed-tensors", pack_quantized::read), ("gptq", gptq::read)];

/// How the matrices of a checkpoint are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quantization {
    default: Encoding,
    /// What single modules differ in; `None` for those that are not quantized.
    modules: BTreeMap<String, Option<Encoding>>,
    packing: Packing,
}

impl Quantization {
    /// How files name and lay out the tensors of packed matrices.
    pub fn packing(&self) -> &Packing {
        &self.packing
    }

    /// How the module at that path (a tensor's name without `.weight`) is stored.
    pub fn of(&self, module: &str) -> ModuleFormat {
        match self.modules.get(module) {
            None => ModuleFormat::IfPacked(self.default),
            Some(Some(format)) => ModuleFormat::Packed(*format),
            Some(None) => ModuleFormat::Plain,
        }
    }

    /// What is said of a module of this model: by its name, or by that of the one that has it together with others.
    pub(crate) fn said(&self, module: &str, spec: &ModelSpec) -> ModuleFormat {
        match self.of(module) {
            of_one @ ModuleFormat::IfPacked(_) => {
                spec.expert_slice(module).map_or(of_one, |slice| self.of(&slice.name))
            }
            of_one => of_one,
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
    let Some(method) = map.get("quant_method").filter(|method| !method.is_null()) else {
        return mlx::read(map, field).map(Some);
    };
    let known = METHODS.iter().find(|(name, _)| method.as_str() == Some(name));
    match known {
        Some((_, read)) => read(map, field).map(Some),
        None => Err(unsupported(format!("{field}.quant_method"), method)),
    }
}

/// The refusal of what a field has.
fn unsupported(field: String, found: &Value) -> ConfigError {
    ConfigError::UnsupportedQuantization { field, found: shown(found) }
}
