//! From the bytes of a `config.json` to a specification.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::Value;

use super::error::ConfigError;
use super::family;
use super::fields::Fields;
use super::limit::MAX_CONFIG_BYTES;
use super::quantization::{self, Quantization};
use super::whole::ModelSpec;
use crate::layout::Packing;

/// What Python writes for numbers that JSON has no words for.
const NO_NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The same JSON with these words as strings, which are refused where a number is asked for, and nowhere else.
pub(super) fn quoted(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while at < json.len() {
        match json[at] {
            b'\\' if in_string => at += 1, // Whatever is escaped ends no string.
            b'"' => in_string = !in_string,
            _ if in_string => {}
            _ => {
                if let Some(word) = NO_NUMBERS.iter().find(|word| json[at..].starts_with(word)) {
                    let out = out.get_or_insert_default();
                    out.extend_from_slice(&json[copied..at]);
                    out.extend([&b"\""[..], word, b"\""].concat());
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
        }
        at += 1;
    }
    match out {
        None => Cow::Borrowed(json),
        Some(mut out) => {
            out.extend_from_slice(&json[copied..]);
            Cow::Owned(out)
        }
    }
}

/// What a text of bounded length says.
fn read(json: &[u8]) -> Result<Value, ConfigError> {
    if json.len() > MAX_CONFIG_BYTES {
        return Err(ConfigError::TooLarge { bytes: json.len() });
    }
    serde_json::from_slice(&quoted(json)).map_err(ConfigError::Json)
}

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5.
    ///
    /// The bytes may come from anywhere: no input panics, every size is bounded, and workers take what is returned.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field, for what is malformed and for what is not supported.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, ConfigError> {
        ModelSpec::parse_value(&read(config_json)?, true)
    }

    /// The specification of files that hold tensors called `names`, where `self` is what their configuration says: under the
    /// names that these have. What is packed as MLX does it is in the Hub's form where that has other names, and all of them are
    /// there.
    pub fn of_files(self, config_json: &[u8], names: &HashSet<&str>) -> ModelSpec {
        let named = |spec: ModelSpec| {
            let mut spec = spec.named_as(names.iter().copied()).into_owned();
            spec.part_latents(|name| names.contains(name));
            spec
        };
        let spec = named(self);
        let is_of_mlx = |it: &Quantization| matches!(it.packing(), Packing::Mlx);
        if !spec.quantization.as_ref().is_some_and(is_of_mlx) {
            return spec;
        }
        let of_hub = read(config_json).and_then(|value| ModelSpec::parse_value(&value, false));
        let required = |spec: &ModelSpec| -> Vec<String> {
            spec.required_tensors().into_iter().map(|required| required.name).collect()
        };
        match of_hub.map(named) {
            // Most families have one form.
            Ok(of_hub) if of_hub == spec => spec,
            Ok(of_hub)
                if required(&of_hub) != required(&spec) && of_hub.missing_in(names).is_empty() =>
            {
                of_hub
            }
            _ => spec,
        }
    }

    /// The same where a file beside it says how matrices are stored (`hf_quant_config.json` of NVIDIA's Model Optimizer), which
    /// counts where the configuration does not say it.
    ///
    /// # Errors
    /// As [`ModelSpec::parse`], of both.
    pub fn parse_beside(config_json: &[u8], beside: &[u8]) -> Result<ModelSpec, ConfigError> {
        let mut value = read(config_json)?;
        let is_said = |field: &&str| value.get(*field).is_some_and(|it| !it.is_null());
        if !quantization::FIELDS.iter().any(is_said)
            && let Some(said) = quantization::beside(&read(beside)?)?
            && let Some(fields) = value.as_object_mut()
        {
            fields.insert(quantization::FIELDS[1].to_owned(), said);
        }
        ModelSpec::parse_value(&value, true)
    }

    /// `may_be_of_mlx`: whether what MLX packed is in MLX's form.
    fn parse_value(value: &Value, may_be_of_mlx: bool) -> Result<ModelSpec, ConfigError> {
        let mut fields = Fields::new(value)?;
        fields.is_of_mlx = may_be_of_mlx && quantization::is_of_mlx(&fields);
        let family = family::of(&fields)?;
        let mut spec = (family.read)(&fields)?;
        spec.quantization = quantization::read(&fields)?;
        let bos = fields.token_ids("bos_token_id")?.first().copied();
        spec.bos_token_id = bos.or(spec.bos_token_id);
        let eos = fields.token_ids("eos_token_id")?;
        if !eos.is_empty() {
            spec.eos_token_ids = eos;
        }
        fields.refuse_others(family.architecture)?;
        spec.check()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_what_is_no_number_are_strings_outside_of_strings() {
        let quoted = |json: &str| String::from_utf8(quoted(json.as_bytes()).into_owned()).unwrap();
        assert_eq!(
            quoted(r#"{"a": [0.0, Infinity], "b": -Infinity, "c":NaN}"#),
            r#"{"a": [0.0, "Infinity"], "b": "-Infinity", "c":"NaN"}"#
        );
        for same in [r#"{"NaN": "Infinity \" NaN"}"#, r#""\\""#, "\"\\", "[1, 2]", ""] {
            assert_eq!(quoted(same), same);
        }
    }
}
