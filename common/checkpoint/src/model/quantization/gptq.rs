//! Quantization as GPTQ's files say it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::integers::{flag, group_of, text, whole};
use super::modules::Quantization;
use super::refusal::unsupported;
use crate::encoding::Encoding;
use crate::encoding::integer::{Order, Zero};
use crate::layout::{Gptq, Packing};
use crate::model::error::ConfigError;
use crate::model::fields::shown;

/// Reads the object that is called `place`.
///
/// Single modules may be left out (`dynamic` with `-:`), which then have plain weights; what the files hold says which.
///
/// # Errors
/// [`ConfigError::UnsupportedQuantization`] for other bits, groups, versions and words; [`ConfigError`] for what is malformed.
pub(super) fn read(object: &Map<String, Value>, place: &str) -> Result<Quantization, ConfigError> {
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
