//! `quant_method` `mxfp4`: experts in MXFP4, as gpt-oss is published. All else is plain, as its files say.

use serde_json::{Map, Value};

use super::modules::Quantization;
use super::refusal::refuse_others;
use crate::encoding::{Encoding, Fp4};
use crate::layout::Packing;
use crate::model::error::ConfigError;

/// Keys that change nothing: matrices that are plain are plain in the files.
const KNOWN: &[&str] = &["quant_method", "modules_to_not_convert", "dequantize"];

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other keys.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let (default, packing) = (Encoding::Fp4(Fp4::Mx), Packing::Mxfp4);
    Ok(Quantization { default, modules: Default::default(), packing })
}
