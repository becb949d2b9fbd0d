//! What Ollama calls `options`: how tokens are chosen, and how many.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use crate::api::bounds::{PENALTY, REPETITION, SHARE, TEMPERATURE};
use crate::api::described::{self, Except};
use crate::api::error::ApiError;
use crate::api::unmet::{Harmless, Refused, Unmet};
use crate::api::wire::{Common, OneOrMany};

/// The options of a request. What Ollama needs to load a model is not among them, and let be.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct Options {
    #[schemars(transform = { TEMPERATURE })]
    temperature: Option<f32>,
    #[serde(deserialize_with = "whole")]
    top_k: Option<i64>,
    #[schemars(transform = { SHARE })]
    top_p: Option<f32>,
    #[schemars(transform = { SHARE })]
    min_p: Option<f32>,
    #[serde(deserialize_with = "whole")]
    seed: Option<i64>,
    #[schemars(schema_with = "described::stops")]
    stop: Option<OneOrMany<String>>,
    #[schemars(transform = { REPETITION })]
    repeat_penalty: Option<f32>,
    #[serde(deserialize_with = "whole")]
    repeat_last_n: Option<i64>,
    #[schemars(transform = { PENALTY })]
    presence_penalty: Option<f32>,
    #[schemars(transform = { PENALTY })]
    frequency_penalty: Option<f32>,
    #[serde(deserialize_with = "whole")]
    #[schemars(transform = Except(0))]
    num_predict: Option<i64>,
    #[serde(deserialize_with = "whole")]
    pub(super) num_ctx: Option<i64>,
    /// Of all that is not named here.
    #[serde(flatten)]
    unmet: Unmet<InOptions>,
}

/// What would change an answer and is not followed.
#[derive(Debug, Default)]
struct InOptions;

impl Refused for InOptions {
    const REFUSED: &'static [(&'static str, Harmless)] = &[
        ("mirostat", Harmless::Number(0.0)),
        ("penalize_newline", Harmless::Flag(true)),
        ("tfs_z", Harmless::Number(1.0)),
        ("typical_p", Harmless::Number(1.0)),
    ];
}

/// A whole number; programs that know but one kind of numbers write some of them as `40.0`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    /// From here on such numbers have neighbours that are not told from them.
    const LARGEST: f64 = (1_u64 << 53) as f64;
    let Some(number) = Option::<Number>::deserialize(from)? else { return Ok(None) };
    let is_whole = |it: &f64| it.fract() == 0.0 && it.abs() < LARGEST;
    let read = number.as_i64().or_else(|| number.as_f64().filter(is_whole).map(|it| it as i64));
    read.map(Some)
        .ok_or_else(|| D::Error::custom(format!("{number} is no whole number of 64 bits")))
}

impl Options {
    /// The same as parameters of a chat, but for how long a context is wanted.
    ///
    /// # Errors
    /// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be followed.
    pub(super) fn common(self) -> Result<Common, ApiError> {
        self.unmet.check()?;
        // Who is penalised: here, all of prompt and answer.
        let penalises = self.repeat_penalty.is_some_and(|penalty| penalty != 1.0);
        if let Some(found) = self.repeat_last_n.filter(|last| penalises && *last != -1) {
            let expected = "-1 beside repeat_penalty: all of prompt and answer";
            return Err(ApiError::parameter("repeat_last_n", found, expected));
        }
        // All that the context has room for, if it is negative.
        let most = |count: i64| u64::try_from(count).unwrap_or(u64::MAX);
        Ok(Common {
            max_tokens: self.num_predict.map(most),
            temperature: self.temperature,
            top_k: self.top_k.map(|k| u64::try_from(k).unwrap_or(0)), // All of them.
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.filter(|seed| *seed != -1), // Another one each time.
            stop: self.stop,
            ..Common::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn common(options: Value) -> Result<Common, String> {
        let options: Options = serde_json::from_value(options).map_err(|it| it.to_string())?;
        options.common().map_err(|error| error.to_string())
    }

    #[test]
    fn options_have_other_names_elsewhere() {
        let all = common(json!({
            "temperature": 0.5, "top_k": 40.0, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["a"],
            "repeat_penalty": 1.1, "repeat_last_n": -1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
            "num_predict": 30, "num_ctx": 4096, "num_gpu": 99, "num_keep": 4, "of_a_later_version": [1],
        }));
        let all = all.unwrap();
        assert_eq!((all.temperature, all.top_k, all.top_p), (Some(0.5), Some(40), Some(0.9)));
        assert_eq!((all.min_p, all.seed, all.max_tokens), (Some(0.1), Some(7), Some(30)));
        assert_eq!(all.repetition_penalty, Some(1.1));
        assert_eq!((all.presence_penalty, all.frequency_penalty), (Some(0.2), Some(0.3)));
        assert_eq!(all.stop.unwrap().into_vec(), ["a"]);
        let silent = common(json!({ "seed": -1, "top_k": -1, "temperature": null })).unwrap();
        assert_eq!((silent.seed, silent.top_k, silent.temperature), (None, Some(0), None));
        assert_eq!(silent.max_tokens, None);
        assert_eq!(common(json!({ "num_predict": -1 })).unwrap().max_tokens, Some(u64::MAX));
    }

    #[test]
    fn what_would_change_an_answer_is_refused_unless_it_changes_none() {
        for (name, value) in [
            ("mirostat", json!(2)),
            ("tfs_z", json!(0.5)),
            ("typical_p", json!(0.7)),
            ("penalize_newline", json!(false)),
        ] {
            let said = common(json!({ name: value })).map(drop).unwrap_err();
            assert!(said.starts_with(name), "{said}");
        }
        let harmless =
            json!({ "mirostat": 0, "tfs_z": 1.0, "typical_p": 1, "penalize_newline": true });
        assert!(common(harmless).is_ok());
        assert!(common(json!({ "repeat_last_n": 64 })).is_ok(), "nobody is penalised");
        let said = common(json!({ "repeat_last_n": 64, "repeat_penalty": 1.1 })).map(drop);
        assert!(said.unwrap_err().starts_with("repeat_last_n is 64"));
        for odd in [json!({ "top_k": 1.5 }), json!({ "seed": 1e300 }), json!({ "stop": 3 })] {
            assert!(common(odd).is_err());
        }
    }

    #[test]
    fn the_documentation_names_what_is_refused() {
        let documentation = include_str!("../../../../docs/src/reference/http.md");
        let refused = InOptions::REFUSED.iter().chain(super::super::wire::InRequests::REFUSED);
        for (name, _) in refused {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
        for (name, _) in InOptions::REFUSED {
            assert_eq!(crate::api::ollama::named(name), format!("options.{name}"));
        }
    }
}
