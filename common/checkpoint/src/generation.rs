//! `generation_config.json`: the model's own defaults for choosing tokens.

use std::io::ErrorKind;

use serde_json::Value;

use crate::container::TextFiles;

/// Longest file read; real ones have a few hundred bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Most end tokens kept.
const MAX_TOKEN_IDS: usize = 64;

/// Defaults for choosing tokens. `None` means the file does not say and the engine decides.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GenerationConfig {
    /// Whether to sample at all; transformers takes the likeliest token every time where it is absent.
    pub do_sample: Option<bool>,
    /// Divisor of the logits, positive.
    pub temperature: Option<f32>,
    /// Smallest probability mass kept, more than 0, at most 1.
    pub top_p: Option<f32>,
    /// How many tokens are kept; 0 for all.
    pub top_k: Option<usize>,
    /// Least probability kept, relative to the most likely token's, 0 to 1.
    pub min_p: Option<f32>,
    /// Divisor of the scores of tokens already seen, positive.
    pub repetition_penalty: Option<f32>,
    /// Longest answer in tokens.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end an answer; they override those of `config.json`.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationConfig {
    /// Reads the file's text. What cannot be used is left at its default, with a warning naming it:
    /// these are preferences, and no reason to refuse a model.
    pub fn parse(json: &[u8]) -> (GenerationConfig, Vec<String>) {
        let mut warnings = Vec::new();
        let value: Value = match serde_json::from_slice(json) {
            Ok(value @ Value::Object(_)) => value,
            Ok(_) => {
                return (Self::default(), vec![format!("{FILE} is not an object; ignored")]);
            }
            Err(error) => return (Self::default(), vec![format!("{FILE} is ignored: {error}")]),
        };
        let get = |field: &str| value.get(field).filter(|value| !value.is_null());
        let mut ignored = |field: &str| {
            warnings.push(format!("{FILE}: {field} has a value that cannot be used; ignored"));
        };
        let mut number = |field: &str, least: f64, most: f64| {
            let given = get(field)?;
            let usable = given.as_f64().filter(|number| (least..=most).contains(number));
            if usable.is_none() {
                ignored(field);
            }
            usable.map(|number| number as f32)
        };
        let tiny = f64::from(f32::MIN_POSITIVE);
        let temperature = number("temperature", 0.0, 1e6);
        let top_p = number("top_p", tiny, 1.0);
        let min_p = number("min_p", 0.0, 1.0);
        let repetition_penalty = number("repetition_penalty", tiny, 1e6);
        let mut count = |field: &str| {
            let given = get(field)?;
            let usable = given.as_u64().and_then(|number| usize::try_from(number).ok());
            if usable.is_none() {
                ignored(field);
            }
            usable
        };
        let (top_k, max_new_tokens) = (count("top_k"), count("max_new_tokens"));
        let do_sample = get("do_sample").and_then(|given| {
            let usable = given.as_bool();
            if usable.is_none() {
                ignored("do_sample");
            }
            usable
        });
        let eos_token_ids = match get("eos_token_id").map(token_ids) {
            None => Vec::new(),
            Some(Some(ids)) => ids,
            Some(None) => {
                ignored("eos_token_id");
                Vec::new()
            }
        };
        let config = GenerationConfig {
            do_sample,
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            max_new_tokens,
            eos_token_ids,
        };
        (config, warnings)
    }
}

const FILE: &str = "generation_config.json";

/// Reads the text of a model; it may be absent.
pub(crate) fn read(texts: &TextFiles, warnings: &mut Vec<String>) -> GenerationConfig {
    match texts.read(FILE, MAX_BYTES) {
        Ok(Ok(json)) => {
            let (config, found) = GenerationConfig::parse(&json);
            warnings.extend(found);
            return config;
        }
        Ok(Err(bytes)) => warnings.push(format!("{FILE} is ignored: {bytes} bytes are too many")),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            warnings.push(format!("cannot read {}: {error}", texts.path(FILE).display()));
        }
    }
    GenerationConfig::default()
}

/// One id or a list of them.
fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if items.len() > MAX_TOKEN_IDS {
        return None;
    }
    items.iter().map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_full_file() {
        let (config, warnings) = GenerationConfig::parse(
            br#"{"do_sample":true,"temperature":0.7,"top_p":0.8,"top_k":20,"min_p":null,
                "repetition_penalty":1.05,"eos_token_id":[151645,151643],"pad_token_id":151643}"#,
        );
        assert!(warnings.is_empty(), "{warnings:?}");
        let expected = GenerationConfig {
            do_sample: Some(true),
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            repetition_penalty: Some(1.05),
            eos_token_ids: vec![151645, 151643],
            ..Default::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn absent_keys_say_nothing() {
        let (config, warnings) = GenerationConfig::parse(br#"{"eos_token_id":2}"#);
        assert!(config.do_sample.is_none() && config.temperature.is_none() && warnings.is_empty());
        assert_eq!(config.eos_token_ids, [2]);
    }

    #[test]
    fn unusable_values_warn_and_leave_the_default() {
        let (config, warnings) = GenerationConfig::parse(
            br#"{"do_sample":1,"temperature":-1,"top_p":"x","top_k":-2,"max_new_tokens":1.5,
                "repetition_penalty":0,"min_p":2,"eos_token_id":"</s>"}"#,
        );
        assert_eq!(config, GenerationConfig::default());
        assert_eq!(warnings.len(), 8, "{warnings:?}");
        assert!(warnings.iter().any(|warning| warning.contains("repetition_penalty")));
    }

    #[test]
    fn invalid_json_warns_and_leaves_the_defaults() {
        for text in ["", "{", "[]", "7", "<html>"] {
            let (config, warnings) = GenerationConfig::parse(text.as_bytes());
            assert_eq!(config, GenerationConfig::default());
            assert_eq!(warnings.len(), 1, "{text}");
        }
    }
}
