//! Quantization to whole numbers as compressed-tensors says it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::integers::{group_of, refused, text, whole};
use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::Encoding;
use crate::encoding::integer::{Order, Zero};
use crate::layout::{PackQuantized, Packing};
use crate::model::error::ConfigError;
use crate::model::fields::{shown, wrong};

/// Keys that are read here, or name matrices that are plain, which are plain in the files, or say who made these.
const KNOWN: &[&str] = &[
    "quant_method",
    "format",
    "config_groups",
    "ignore",
    "kv_cache_scheme",
    "sparsity_config",
    "transform_config",
    "quantization_status",
    "global_compression_ratio",
    "version",
];
/// What the format is called.
pub(super) const FORMAT: &str = "pack-quantized";

/// Reads the object that is called `place`, whose format is `pack-quantized`.
///
/// Which modules are packed is what the files hold says; what is said of activations is not used: they stay what they are.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other formats, types, strategies, bits and groups, for groups of modules that
/// differ, and for what changes the arithmetic beside; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    let format = text(object, place, "format", "")?;
    if format != FORMAT {
        return Err(unsupported(format!("{place}.format"), &format.into()));
    }
    refuse_others(object, place, KNOWN)?;
    refuse_other_arithmetic(object, place)?;
    let groups = format!("{place}.config_groups");
    let of_groups = object.get("config_groups").filter(|value| !value.is_null());
    let of_groups = of_groups.ok_or_else(|| ConfigError::Missing { field: groups.clone() })?;
    let all = of_groups.as_object().ok_or_else(|| wrong(&groups, "an object", of_groups))?;
    let mut layouts = Vec::new();
    for (name, group) in all {
        let place = format!("{groups}.{name}.weights");
        if let Some(own) = group.get("format").filter(|own| !own.is_null() && *own != FORMAT) {
            return Err(unsupported(format!("{groups}.{name}.format"), own));
        }
        let Some(weights) = group.get("weights").filter(|weights| !weights.is_null()) else {
            continue; // Activations alone are rounded.
        };
        let weights = weights.as_object().ok_or_else(|| wrong(&place, "an object", weights))?;
        layouts.push(layout_of(weights, &place)?);
    }
    layouts.dedup();
    let [(ref layout, default)] = layouts[..] else {
        let found = shown(of_groups);
        return Err(ConfigError::UnsupportedQuantization { field: groups, found });
    };
    let packing = Packing::PackQuantized(layout.clone());
    Ok(Quantization { default, modules: BTreeMap::new(), packing })
}

/// What the weights of a group of modules are stored as.
fn layout_of(
    weights: &Map<String, Value>,
    place: &str,
) -> Result<(PackQuantized, Encoding), ConfigError> {
    let kind = text(weights, place, "type", "int")?;
    if kind != "int" {
        return Err(unsupported(format!("{place}.type"), &kind.into()));
    }
    let bits = whole(weights, place, "num_bits")?;
    let group = match text(weights, place, "strategy", "")? {
        "channel" => None,
        "group" => group_of(weights, place)?,
        other => return Err(unsupported(format!("{place}.strategy"), &other.into())),
    };
    let zero = match weights.get("symmetric") {
        None | Some(Value::Null | Value::Bool(true)) => Zero::Middle,
        Some(Value::Bool(false)) => Zero::Stored,
        Some(other) => return Err(wrong(&format!("{place}.symmetric"), "true or false", other)),
    };
    let layout = PackQuantized { bits, group, zero };
    match layout.format(Order::Neighbours) {
        Some(format) => Ok((layout, Encoding::Integer(format))),
        None if matches!(bits, 4 | 8) => Err(refused(weights, place, bits)),
        None => Err(unsupported(format!("{place}.num_bits"), &bits.into())),
    }
}

/// Refuses rotations beside the matrices, and matrices with holes.
fn refuse_other_arithmetic(object: &Map<String, Value>, place: &str) -> Result<(), ConfigError> {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty() || map.get("format") == Some(&Value::from("dense")),
        _ => false,
    };
    for field in ["transform_config", "sparsity_config"] {
        if let Some(found) = object.get(field).filter(|value| !is_nothing(value)) {
            return Err(unsupported(format!("{place}.{field}"), found));
        }
    }
    Ok(())
}
