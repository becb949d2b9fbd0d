//! Quantization as GPTQ's files say it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::integers::{flag, group_of, text, whole};
use super::modules::Quantization;
use super::refusal::{refuse_others, unsupported};
use crate::encoding::Encoding;
use crate::encoding::integer::{Order, Zero};
use crate::layout::{Gptq, Packing};
use crate::model::error::ConfigError;
use crate::model::fields::shown;

/// Keys that are read here, or say how the codes were found, or which program is to use them.
const KNOWN: &[&str] = &[
    "quant_method",
    "bits",
    "group_size",
    "sym",
    "desc_act",
    "checkpoint_format",
    "pack_dtype",
    "dynamic",
    "lm_head",
    "meta",
    "damp_percent",
    "damp_auto_increment",
    "true_sequential",
    "static_groups",
    "mse",
    "model_name_or_path",
    "model_file_base_name",
    "model_seqlen",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "batch_size",
    "pad_token_id",
    "dataset",
    "tokenizer",
    "quantizer",
    "backend",
    "format",
    "use_cuda_fp16",
    "use_exllama",
    "exllama_config",
    "max_input_length",
    "cache_block_outputs",
    "hyb_act",
    "act_group_aware",
    "v2",
];

/// Reads the object that is called `place`.
///
/// Single modules may be left out (`dynamic` with `-:`), which then have plain weights; what the files hold says which.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other bits, groups, versions and words; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
    refuse_others(object, place, KNOWN)?;
    let bits = whole(object, place, "bits")?;
    let group = group_of(object, place)?;
    let zero = match text(object, place, "checkpoint_format", "gptq")? {
        "gptq" => Zero::OneMore,
        "gptq_v2" => Zero::Stored,
        other => return Err(unsupported(format!("{place}.checkpoint_format"), &other.into())),
    };
    let words = text(object, place, "pack_dtype", "int32")?;
    if words != "int32" {
        return Err(unsupported(format!("{place}.pack_dtype"), &words.into()));
    }
    if let Some(of_modules) = object.get("dynamic").filter(|value| !value.is_null()) {
        let names = of_modules.as_object().map(|map| map.keys().all(|key| key.starts_with("-:")));
        if names != Some(true) {
            let (field, found) = (format!("{place}.dynamic"), shown(of_modules));
            return Err(ConfigError::UnsupportedQuantization { field, found });
        }
    }
    let layout = Gptq {
        bits,
        group,
        zero,
        is_symmetric: flag(object, place, "sym")?,
        is_ordered: flag(object, place, "desc_act")?,
    };
    let format = layout.format(zero, Order::Neighbours);
    let default = format.ok_or_else(|| super::integers::refused(object, place, bits))?;
    let default = Encoding::Integer(default);
    Ok(Quantization { default, modules: BTreeMap::new(), packing: Packing::Gptq(layout) })
}
