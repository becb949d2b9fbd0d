//! `quant_method` `bitsandbytes`: codes of 4 bits, as transformers has bitsandbytes write them. Its files say themselves which
//! matrices are stored so, and which levels and blocks each has.

use serde_json::{Map, Value};

use super::integers::{flag, text};
use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::{Bnb, Encoding, Levels};
use crate::layout::Packing;
use crate::model::error::ConfigError;

/// Keys that are read here, or are about activations and numbers of a byte, or name matrices that are plain, which are plain in
/// the files.
const KNOWN: &[&str] = &[
    "quant_method",
    "load_in_4bit",
    "_load_in_4bit",
    "load_in_8bit",
    "_load_in_8bit",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "bnb_4bit_quant_storage",
    "bnb_4bit_compute_dtype",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
];
/// Weights of a block, of which configurations do not speak; where a file has others it says so.
const BLOCK: u64 = 64;

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for numbers of a byte, other levels, codes in wider words and keys that are not
/// known; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let refused =
        |key: &str| unsupported(format!("{place}.{key}"), object.get(key).unwrap_or(&Value::Null));
    for key in ["load_in_8bit", "_load_in_8bit"] {
        if flag(object, place, key)? {
            return Err(refused(key));
        }
    }
    if !flag(object, place, "load_in_4bit")? && !flag(object, place, "_load_in_4bit")? {
        return Err(refused("load_in_4bit"));
    }
    if text(object, place, "bnb_4bit_quant_storage", "uint8")? != "uint8" {
        return Err(refused("bnb_4bit_quant_storage"));
    }
    let name = text(object, place, "bnb_4bit_quant_type", Levels::Fp4.name())?;
    let levels = Levels::ALL.into_iter().find(|levels| levels.name() == name);
    let is_nested = flag(object, place, "bnb_4bit_use_double_quant")?;
    let format = levels.and_then(|levels| Bnb::new(levels, BLOCK, is_nested));
    let default = format.map(Encoding::Bnb).ok_or_else(|| refused("bnb_4bit_quant_type"))?;
    Ok(Quantization { default, modules: Default::default(), packing: Packing::Bitsandbytes })
}
