//! Quantization as AWQ's files say it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::integers::{group_of, refused, text, whole};
use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::integer::{Order, Zero};
use crate::encoding::{Encoding, Integer};
use crate::layout::{Awq, Packing};
use crate::model::error::ConfigError;
use crate::model::fields::wrong;

/// Keys that are read here, or name matrices that are plain, which are plain in the files, or say which program is to use
/// the codes.
const KNOWN: &[&str] = &[
    "quant_method",
    "bits",
    "group_size",
    "zero_point",
    "version",
    "modules_to_not_convert",
    "do_fuse",
    "backend",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
];

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other bits, groups, versions, and for codes without zero points;
/// [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let version = text(object, place, "version", "gemm")?;
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(unsupported(format!("{place}.version"), &version.into()));
    }
    match object.get("zero_point") {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(found @ Value::Bool(false)) => {
            return Err(unsupported(format!("{place}.zero_point"), found));
        }
        Some(other) => return Err(wrong(&format!("{place}.zero_point"), "true or false", other)),
    }
    let bits = whole(object, place, "bits")?;
    let group = group_of(object, place)?;
    // Eight codes of 4 bits are what the order of a word is said for.
    let format = Integer::new(bits, group, Zero::Stored, Order::Neighbours).filter(|_| bits == 4);
    let format = format.ok_or_else(|| refused(object, place, if bits == 4 { bits } else { 0 }))?;
    let (default, packing) = (Encoding::Integer(format), Packing::Awq(Awq { format }));
    Ok(Quantization { default, modules: BTreeMap::new(), packing })
}
