//! `quant_method` `fp8`: numbers of a byte, in blocks, or with a scale for each row or matrix. Its files say themselves which
//! matrices are stored so.

use serde_json::{Map, Value};

use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::{Encoding, Fp8};
use crate::layout::Packing;
use crate::model::error::ConfigError;
use crate::model::fields::wrong;

/// Keys that are read here, or are about activations, or name matrices that are plain, which are plain in the files.
const KNOWN: &[&str] = &[
    "quant_method",
    "fmt",
    "scale_fmt",
    "weight_block_size",
    "activation_scheme",
    "modules_to_not_convert",
    "ignored_layers",
    "kv_cache_scheme",
    "dequantize",
];

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other numbers, blocks and keys; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let said = |key: &str| object.get(key).filter(|value| !value.is_null());
    for (key, known) in [("fmt", "e4m3"), ("scale_fmt", "ue8m0")] {
        if let Some(value) = said(key).filter(|value| value.as_str() != Some(known)) {
            return Err(unsupported(format!("{place}.{key}"), value));
        }
    }
    let blocks = said("weight_block_size").map(|value| blocks(value, place)).transpose()?;
    let default = Encoding::Fp8(blocks.unwrap_or(Fp8::Matrix));
    let packing = Packing::Fp8(blocks);
    Ok(Quantization { default, modules: Default::default(), packing })
}

fn blocks(value: &Value, place: &str) -> Result<Fp8, ConfigError> {
    let field = || format!("{place}.weight_block_size");
    let sizes = value.as_array().map(|sizes| sizes.iter().map(Value::as_u64).collect::<Vec<_>>());
    let Some([Some(rows), Some(columns)]) = sizes.as_deref() else {
        return Err(wrong(&field(), "two whole numbers", value));
    };
    Fp8::block(*rows, *columns).ok_or_else(|| ConfigError::UnsupportedQuantization {
        field: field(),
        found: format!("[{rows}, {columns}]"),
    })
}
