//! Parameters that clients send to servers of an API and that this one does not follow. Those that would change the
//! answer are refused by name, unless they say what is done anyway; all others are let be, as clients of newer versions
//! send some. `docs/src/reference/http.md` lists both.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::ApiError;

/// Values of a parameter that ask for nothing which is not done. `null` never does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Harmless {
    /// None.
    Never,
    /// An empty text, list or object.
    Empty,
    /// This one.
    Flag(bool),
    /// This one.
    Number(f64),
    /// One of these words, or a list of them.
    Words(&'static [&'static str]),
}

use Harmless::{Empty, Flag, Never, Number, Words};

/// Parameters of one place, such as the body of a request, that would change an answer.
pub(super) trait Refused {
    /// Their names, with what they may say all the same.
    const REFUSED: &'static [(&'static str, Harmless)];
}

/// Those of OpenAI's requests.
#[derive(Debug, Default)]
pub(super) struct OpenAi;

impl Refused for OpenAi {
    const REFUSED: &'static [(&'static str, Harmless)] = REFUSED;
}

/// What would change an answer: OpenAI's own parameters first, then those of other servers.
const REFUSED: &[(&str, Harmless)] = &[
    ("audio", Never),
    ("best_of", Number(1.0)),
    ("echo", Flag(false)),
    ("function_call", Words(&["auto", "none"])),
    ("functions", Empty),
    ("modalities", Words(&["text"])),
    ("prediction", Never),
    ("reasoning", Never),
    ("reasoning_effort", Never),
    ("response_format", Never),
    ("suffix", Empty),
    ("tool_choice", Words(&["auto", "none"])),
    ("tools", Empty),
    ("top_logprobs", Number(0.0)),
    ("verbosity", Words(&["medium"])),
    ("web_search_options", Never),
    ("add_generation_prompt", Flag(true)),
    ("add_special_tokens", Never),
    ("allowed_token_ids", Never),
    ("bad_words", Empty),
    ("cache_salt", Never),
    ("chat_template", Never),
    ("chat_template_kwargs", Empty),
    ("continue_final_message", Flag(false)),
    ("documents", Empty),
    ("dry_multiplier", Number(0.0)),
    ("dynatemp_range", Number(0.0)),
    ("early_stopping", Flag(false)),
    ("ebnf", Never),
    ("enable_thinking", Never),
    ("grammar", Empty),
    ("guided_choice", Empty),
    ("guided_grammar", Never),
    ("guided_json", Never),
    ("guided_regex", Never),
    ("include_stop_str_in_output", Flag(false)),
    ("json_schema", Never),
    ("length_penalty", Number(1.0)),
    ("logits_processors", Empty),
    ("min_tokens", Number(0.0)),
    ("mirostat", Number(0.0)),
    ("mm_processor_kwargs", Empty),
    ("n_predict", Number(-1.0)),
    ("prompt_logprobs", Never),
    ("regex", Never),
    ("repeat_penalty", Number(1.0)),
    ("skip_special_tokens", Flag(true)),
    ("spaces_between_special_tokens", Flag(true)),
    ("stop_token_ids", Empty),
    ("structured_outputs", Never),
    ("thinking", Never),
    ("truncate_prompt_tokens", Never),
    ("typical_p", Number(1.0)),
    ("use_beam_search", Flag(false)),
    ("xtc_probability", Number(0.0)),
];

/// The first of a request's parameters that would have to be followed and is not.
#[derive(Debug, Default)]
pub(super) struct Unmet<R = OpenAi>(Option<&'static str>, PhantomData<R>);

impl<R> Unmet<R> {
    /// Refuses the request, if there is one.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        self.0.map_or(Ok(()), |param| Err(ApiError::Unsupported { param }))
    }
}

/// Anything else may be there, and what is refused is so by name.
impl<R> JsonSchema for Unmet<R> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Unmet".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

impl<'de, R: Refused> Deserialize<'de> for Unmet<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UnmetVisitor(PhantomData))
    }
}

struct UnmetVisitor<R>(PhantomData<R>);

impl<'de, R: Refused> Visitor<'de> for UnmetVisitor<R> {
    type Value = Unmet<R>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unmet<R>, A::Error> {
        let mut unmet = None;
        while let Some(name) = map.next_key::<String>()? {
            match R::REFUSED.iter().find(|(refused, _)| *refused == name) {
                Some((name, harmless)) => {
                    let said = map.next_value::<Said>()?;
                    if unmet.is_none() && !harmless.covers(&said) {
                        unmet = Some(*name);
                    }
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Unmet(unmet, PhantomData))
    }
}

impl Harmless {
    fn covers(self, said: &Said) -> bool {
        let is_word = |words: &[&str], said: &Said| match said {
            Said::Text(text) => words.contains(&text.as_str()),
            _ => false,
        };
        match (self, said) {
            (_, Said::Nothing) => true,
            (Empty, Said::Text(text)) => text.is_empty(),
            (Empty, Said::List(items)) => items.is_empty(),
            (Empty, Said::Object { empty }) => *empty,
            (Flag(harmless), Said::Flag(said)) => harmless == *said,
            (Number(harmless), Said::Number(said)) => harmless == *said,
            (Words(words), Said::List(items)) => items.iter().all(|item| is_word(words, item)),
            (Words(words), said) => is_word(words, said),
            _ => false,
        }
    }
}

/// What a parameter says, as far as anybody asks: of a large value little is kept.
#[derive(Debug, PartialEq)]
enum Said {
    Nothing,
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<Said>),
    Object { empty: bool },
}

/// Longest text, and longest list, that a harmless value may be.
const MOST_KEPT: usize = 32;

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SaidVisitor)
    }
}

struct SaidVisitor;

impl<'de> Visitor<'de> for SaidVisitor {
    type Value = Said;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Said, E> {
        Ok(Said::Nothing)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Said, E> {
        Ok(Said::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Said, E> {
        Ok(Said::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Said, E> {
        Ok(Said::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Said, E> {
        Ok(Said::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Said, E> {
        Ok(Said::Text(text.chars().take(MOST_KEPT).collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Said, A::Error> {
        let mut items = Vec::new();
        while items.len() < MOST_KEPT {
            match list.next_element()? {
                Some(item) => items.push(item),
                None => return Ok(Said::List(items)),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Said::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Said, A::Error> {
        let mut empty = true;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            empty = false;
        }
        Ok(Said::Object { empty })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::wire::{ChatRequest, CompletionRequest, EmbeddingsRequest};
    use super::*;

    fn unmet(more: serde_json::Value) -> Option<&'static str> {
        let mut request = json!({ "messages": [{ "role": "user", "content": "a" }], "n": 1 });
        for (name, value) in more.as_object().expect("fields") {
            request[name] = value.clone();
        }
        let text = request.to_string();
        let request: ChatRequest = serde_json::from_str(&text).expect("a request");
        assert_eq!(request.common.n, Some(1), "known parameters are read as well");
        request.common.unmet.0
    }

    #[test]
    fn what_would_change_the_answer_is_named() {
        for (name, _) in REFUSED {
            let of_chat = ["tools", "tool_choice", "response_format", "top_logprobs"];
            let of_template = ["chat_template_kwargs", "enable_thinking", "reasoning_effort"];
            let of_ending = ["add_generation_prompt", "continue_final_message"];
            if [&of_chat[..], &of_template, &of_ending].concat().contains(name) {
                continue; // A chat has these.
            }
            assert_eq!(unmet(json!({ *name: { "a": 1 } })), Some(*name));
            assert_eq!(unmet(json!({ *name: null })), None, "{name}");
        }
        let completion = r#"{"prompt": "a", "response_format": {"type": "json_object"}}"#;
        let completion: CompletionRequest = serde_json::from_str(completion).expect("a request");
        assert_eq!(completion.common.unmet.0, Some("response_format"));
        let embedding = |more: &str| {
            let text = format!("{{\"input\": [1, 2], \"dimensions\": 3, \"user\": \"a\"{more}}}");
            let request: EmbeddingsRequest = serde_json::from_str(&text).expect("a request");
            assert_eq!(request.dimensions, Some(3), "known parameters are read as well");
            request.unmet.0
        };
        assert_eq!(embedding(""), None);
        assert_eq!(embedding(", \"truncate_prompt_tokens\": null"), None);
        let refused = embedding(", \"truncate_prompt_tokens\": 5");
        assert_eq!(refused, Some("truncate_prompt_tokens"));
    }

    #[test]
    fn what_is_done_anyway_may_be_asked_for() {
        let asked = json!({
            "modalities": ["text"], "functions": [], "function_call": "none", "best_of": 1,
            "echo": false, "suffix": "", "skip_special_tokens": true, "min_tokens": 0,
            "chat_template_kwargs": {}, "typical_p": 1.0, "verbosity": "medium",
        });
        assert_eq!(unmet(asked), None);
        for (name, value) in [
            ("modalities", json!(["text", "audio"])),
            ("modalities", json!("audio")),
            ("best_of", json!(2)),
            ("echo", json!(true)),
            ("suffix", json!("b")),
            ("min_tokens", json!(3)),
            ("guided_choice", json!(["a", "b"])),
            ("guided_regex", json!("")),
            ("function_call", json!({ "name": "f" })),
            ("functions", json!([{ "name": "f" }])),
        ] {
            assert_eq!(unmet(json!({ name: value })), Some(name), "{value}");
        }
    }

    #[test]
    fn what_changes_nothing_and_what_nobody_knows_is_let_be() {
        let asked = json!({
            "user": "a", "metadata": { "a": "b" }, "store": true, "service_tier": "auto",
            "safety_identifier": "a", "prompt_cache_key": "a", "parallel_tool_calls": true,
            "of_a_later_version": [1, { "a": [2] }],
        });
        assert_eq!(unmet(asked), None);
    }

    #[test]
    fn the_documentation_lists_what_is_refused() {
        let documentation = include_str!("../../../docs/src/reference/http.md");
        for (name, _) in REFUSED {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
    }
}
