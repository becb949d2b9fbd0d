//! `quant_method` `compressed-tensors`: groups of modules, each with the type of its numbers and what shares a scale. Which
//! matrices are stored which way, and which are plain, files say themselves.

use serde_json::{Map, Value};

use super::modules::Quantization;
use super::pack_quantized;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::{Encoding, Fp4, Fp8};
use crate::layout::Packing;
use crate::model::error::ConfigError;
use crate::model::fields::{Fields, wrong};

/// Keys that are read here, or name matrices that are plain, which are plain in the files, or say who made these.
const KNOWN: &[&str] = &[
    "quant_method",
    "format",
    "config_groups",
    "ignore",
    "kv_cache_scheme",
    "sparsity_config",
    "quantization_status",
    "global_compression_ratio",
    "version",
];
/// Keys of a group that are read here, or are about activations, or name its modules.
const KNOWN_OF_GROUP: &[&str] =
    &["format", "targets", "weights", "input_activations", "output_activations"];
/// Its formats of floating-point numbers.
const NUMBERS: [&str; 2] = ["float-quantized", "naive-quantized"];
const PAIRS: &str = "nvfp4-pack-quantized";
/// What modules of several groups have.
const MIXED: &str = "mixed-precision";

/// Reads the object that is called `place`.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other formats, numbers and groups, and for keys that are not known;
/// [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    if object.get("format").and_then(Value::as_str) == Some(pack_quantized::FORMAT) {
        return pack_quantized::read(object, place);
    }
    refuse_others(object, place, KNOWN)?;
    let format = object.get("format").filter(|format| !format.is_null());
    let known = |format: &&Value| {
        format.as_str().is_some_and(|it| NUMBERS.contains(&it) || [PAIRS, MIXED].contains(&it))
    };
    if let Some(format) = format.filter(|format| !known(format)) {
        return Err(unsupported(format!("{place}.format"), format));
    }
    if let Some(value) = object.get("sparsity_config") {
        let dense =
            value.as_object().is_none_or(|it| it.get("format").is_none_or(|it| it == "dense"));
        if !dense {
            return Err(unsupported(format!("{place}.sparsity_config"), value));
        }
    }
    let groups = format!("{place}.config_groups");
    let Some(value) = object.get("config_groups") else {
        return Err(ConfigError::Missing { field: groups });
    };
    let Some(all) = value.as_object() else { return Err(wrong(&groups, "an object", value)) };
    let (mut default, mut blocks) = (None, None);
    for (name, value) in all {
        let place = format!("{groups}.{name}");
        let Some(group) = value.as_object() else { return Err(wrong(&place, "an object", value)) };
        refuse_others(group, &place, KNOWN_OF_GROUP)?;
        let Some(weights) = group.get("weights").filter(|weights| !weights.is_null()) else {
            continue; // Activations alone are rounded.
        };
        let own = group.get("format").filter(|format| !format.is_null());
        if let Some(format) = own.filter(|format| !known(format)) {
            return Err(unsupported(format!("{place}.format"), format));
        }
        let place = format!("{place}.weights");
        let Some(weights) = weights.as_object() else {
            return Err(wrong(&place, "an object", weights));
        };
        let encoding = encoding(weights, &place)?;
        default.get_or_insert(encoding);
        if let Encoding::Fp8(found @ Fp8::Block(_)) = encoding
            && *blocks.get_or_insert(found) != found
        {
            return Err(unsupported(groups, value)); // Which module has which blocks, tensors do not say.
        }
    }
    let Some(default) = default else { return Err(unsupported(groups, value)) };
    let packing = Packing::CompressedFloats(blocks);
    Ok(Quantization { default, modules: Default::default(), packing })
}

/// How the weights of a group are stored.
fn encoding(weights: &Map<String, Value>, place: &str) -> Result<Encoding, ConfigError> {
    let fields = Fields::of(weights);
    let refused =
        |key: &str| unsupported(format!("{place}.{key}"), weights.get(key).unwrap_or(&Value::Null));
    if weights.get("type").and_then(Value::as_str) != Some("float") {
        return Err(refused("type"));
    }
    if weights.get("symmetric").is_some_and(|it| *it == Value::Bool(false)) {
        return Err(refused("symmetric"));
    }
    let group = fields.get("group_size").and_then(Value::as_u64);
    let strategy = fields.get("strategy").and_then(Value::as_str);
    match weights.get("num_bits").and_then(Value::as_u64) {
        Some(8) => match strategy {
            None | Some("tensor") => Ok(Encoding::Fp8(Fp8::Matrix)),
            Some("channel") => Ok(Encoding::Fp8(Fp8::Row)),
            Some("block") => {
                let sizes = weights.get("block_structure").and_then(Value::as_array);
                let sizes = sizes.map(|it| it.iter().map(Value::as_u64).collect::<Vec<_>>());
                let block = match sizes.as_deref() {
                    Some([Some(rows), Some(columns)]) => Fp8::block(*rows, *columns),
                    _ => None,
                };
                block.map(Encoding::Fp8).ok_or_else(|| refused("block_structure"))
            }
            Some("group") => {
                let block = group.and_then(|group| Fp8::block(1, group));
                block.map(Encoding::Fp8).ok_or_else(|| refused("group_size"))
            }
            Some(_) => Err(refused("strategy")),
        },
        Some(4) if strategy != Some("tensor_group") => Err(refused("strategy")),
        Some(4) if group != Some(Fp4::NvDivided.group() as u64) => Err(refused("group_size")),
        Some(4) => Ok(Encoding::Fp4(Fp4::NvDivided)),
        _ => Err(refused("num_bits")),
    }
}
