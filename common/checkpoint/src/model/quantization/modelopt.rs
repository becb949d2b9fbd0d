//! `quant_method` `modelopt`: what NVIDIA's Model Optimizer writes. An algorithm says what the numbers of all modules are that
//! are not plain; which those are, and of several algorithms which is whose, files say themselves.

use serde_json::{Map, Value};

use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::{Encoding, Fp4, Fp8};
use crate::layout::Packing;
use crate::model::error::ConfigError;
use crate::model::fields::wrong;

/// What configurations call it.
pub(super) const METHOD: &str = "modelopt";
/// Keys that are read here, or name matrices that are plain, which are plain in the files, or are about activations, keys and
/// values, or say who made these.
const KNOWN: &[&str] = &[
    "quant_method",
    "quant_algo",
    "group_size",
    "config_groups",
    "quantized_layers",
    "ignore",
    "exclude_modules",
    "weights",
    "input_activations",
    "output_activations",
    "targets",
    "kv_cache_scheme",
    "kv_cache_quant_algo",
    "producer",
];
/// Rows and columns of a block where blocks have no size in the configuration.
const BLOCK: u64 = 128;
/// Numbers that share a scale in MXFP8.
const MX: u64 = 32;

/// What a file of the Optimizer's own says, as configurations say it; `None` if it says that nothing is packed.
///
/// # Errors
/// [`ConfigError`] for what is no such file.
pub(in super::super) fn beside(said: &Value) -> Result<Option<Value>, ConfigError> {
    let field = "quantization";
    let found = said.get(field).unwrap_or(&Value::Null);
    let Some(object) = found.as_object() else { return Err(wrong(field, "an object", found)) };
    if object.get("quant_algo").is_none_or(Value::is_null) {
        return Ok(None);
    }
    let mut object = object.clone();
    object.insert("quant_method".to_owned(), METHOD.into());
    Ok(Some(object.into()))
}

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other algorithms, groups and keys; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let field = |key: &str| format!("{place}.{key}");
    let Some(algorithm) = object.get("quant_algo").filter(|value| !value.is_null()) else {
        return Err(ConfigError::Missing { field: field("quant_algo") });
    };
    let name = algorithm.as_str().map(str::to_ascii_uppercase);
    let blocks = |rows, columns| Fp8::block(rows, columns);
    let (default, blocks) = match name.as_deref() {
        Some("NVFP4" | "W4A16_NVFP4" | "MIXED_PRECISION") => {
            (Encoding::Fp4(Fp4::NvMultiplied), None)
        }
        Some("FP8") => (Encoding::Fp8(Fp8::Matrix), None),
        Some("FP8_PER_CHANNEL_PER_TOKEN") => (Encoding::Fp8(Fp8::Row), None),
        Some("FP8_PB_WO") => (Encoding::Fp8(Fp8::Row), blocks(BLOCK, BLOCK)),
        Some("MXFP8") => (Encoding::Fp8(Fp8::Row), blocks(1, MX)),
        _ => return Err(unsupported(field("quant_algo"), algorithm)),
    };
    let default = blocks.map_or(default, Encoding::Fp8);
    let group = object.get("group_size").filter(|value| !value.is_null());
    if let Some(group) = group.filter(|_| default == Encoding::Fp4(Fp4::NvMultiplied))
        && group.as_u64() != Some(Fp4::NvMultiplied.group() as u64)
    {
        return Err(unsupported(field("group_size"), group));
    }
    let packing = Packing::ModelOpt(blocks);
    Ok(Quantization { default, modules: Default::default(), packing })
}
