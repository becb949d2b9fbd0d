//! Which tokens begin and end texts and answers.

use serde_json::{Map, Value as Json, json};

use super::error::TokenizerError;
use super::vocabulary::{Kind, Vocabulary};
use crate::container::gguf::value::{Metadata, Value};

/// Tokens that end an answer, whatever else is said of them: a model's files often name one of several only.
pub const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    END_OF_PART,
    RETURN,
    "<|call|>",
    FLUSH,
    "<|calls|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|eom_id|>",
    "<|end_of_text|>",
    SENTENCE_END,
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    TOOL_RESPONSE,
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// What ends a part of an answer, where others end the whole.
const END_OF_PART: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const FLUSH: &str = "<|flush|>";
const CALLS: [&str; 2] = ["<|call|>", "<|calls|>"];
/// A piece of text like others, where there is a token for what a tool says.
const SENTENCE_END: &str = "</s>";
const TOOL_RESPONSE: &str = "<|tool_response>";

const BEGINS: &str = "tokenizer.ggml.add_bos_token";
const ENDS_TOO: &str = "tokenizer.ggml.add_eos_token";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
/// Ids of further tokens that end answers.
const MORE_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PADDING: &str = "tokenizer.ggml.padding_token_id";

/// What the author of a model recommends for choosing tokens, and the name of each in `generation_config.json`.
const SAMPLING: [(&str, &str); 5] = [
    ("general.sampling.temp", "temperature"),
    ("general.sampling.top_k", "top_k"),
    ("general.sampling.top_p", "top_p"),
    ("general.sampling.min_p", "min_p"),
    ("general.sampling.penalty_repeat", "repetition_penalty"),
];

/// What holds where a file does not say.
pub(super) struct Defaults {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    /// Whether a text begins with a token that says so.
    begins: bool,
}

impl Defaults {
    /// Of a vocabulary with scores.
    pub(super) const OF_SCORED: Defaults =
        Defaults { bos: Some(1), eos: Some(2), unknown: Some(0), begins: true };

    /// Of a vocabulary with merges.
    pub(super) const fn of_merged(begins: bool) -> Defaults {
        Defaults { bos: None, eos: None, unknown: None, begins }
    }
}

/// Tokens with a role.
pub(super) struct Roles {
    bos: Option<u32>,
    eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    padding: Option<u32>,
    /// Further tokens that end an answer.
    more_ends: Vec<u32>,
    /// Whether a text begins with `bos`.
    begins: bool,
    /// Whether a text ends with `eos`.
    ends: bool,
}

impl Roles {
    /// Those of a file.
    ///
    /// # Errors
    /// [`TokenizerError`] for an id of no token, and for a flag about a token that is not there.
    pub(super) fn read(
        metadata: &Metadata,
        vocabulary: &Vocabulary<'_>,
        defaults: Defaults,
    ) -> Result<Roles, TokenizerError> {
        let tokens = vocabulary.len();
        let inside = |id: &u32| (*id as usize) < tokens;
        let role = |key, default: Option<u32>| match metadata.get(key) {
            None => Ok(default.filter(inside)),
            Some(_) => id(metadata, key, tokens),
        };
        let (bos, eos) = (role(BOS, defaults.bos)?, role(EOS, defaults.eos)?);
        let mut more_ends = Vec::new();
        for key in MORE_ENDS {
            more_ends.extend(role(key, None)?);
        }
        // Files name paddings that no row has, and that nobody needs.
        let optional = |key, default| role(key, default).unwrap_or_default();
        let flag = |flag, key, token: Option<u32>, default| match metadata.bool(flag)? {
            None => Ok(default && token.is_some()),
            Some(true) if token.is_none() => Err(TokenizerError::NoToken { flag, key }),
            Some(&said) => Ok(said),
        };
        Ok(Roles {
            bos,
            eos,
            unknown: optional(UNKNOWN, defaults.unknown),
            padding: optional(PADDING, None),
            more_ends,
            begins: flag(BEGINS, BOS, bos, defaults.begins)?,
            ends: flag(ENDS_TOO, EOS, eos, false)?,
        })
    }

    /// The tokens before and behind a text.
    pub(super) fn around(&self) -> (Option<u32>, Option<u32>) {
        (self.bos.filter(|_| self.begins), self.eos.filter(|_| self.ends))
    }

    /// The text of `tokenizer_config.json`.
    pub(super) fn tokenizer_config(&self, vocabulary: &Vocabulary<'_>) -> Vec<u8> {
        let mut config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
            "add_bos_token": self.begins, "add_eos_token": self.ends,
        });
        // Whoever reads these names takes their tokens for signs: a piece of text must not become one by it.
        let sign = |id: &u32| vocabulary.kind(*id).is_added();
        let roles = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("unk_token", self.unknown.filter(sign)),
            ("pad_token", self.padding.filter(sign)),
        ];
        for (name, id) in roles {
            if let Some(id) = id {
                config[name] = vocabulary.text(id).into();
            }
        }
        config.to_string().into_bytes()
    }

    /// The text of `generation_config.json`; `ends` are the tokens that end an answer because of what they are called.
    ///
    /// # Errors
    /// [`TokenizerError::Value`] for a recommendation that is no number.
    pub(super) fn generation_config(
        &self,
        metadata: &Metadata,
        ends: &[u32],
    ) -> Result<Vec<u8>, TokenizerError> {
        let mut all: Vec<u32> = self.eos.into_iter().collect();
        for &id in self.more_ends.iter().chain(ends) {
            if !all.contains(&id) {
                all.push(id);
            }
        }
        let mut config = Map::new();
        for (key, name) in SAMPLING {
            if let Some(number) = metadata.number(key)? {
                let whole = metadata.unsigned(key).ok().flatten().map(Json::from);
                config.insert(name.to_owned(), whole.unwrap_or_else(|| json!(number)));
            }
        }
        if !config.is_empty() {
            config.insert("do_sample".to_owned(), true.into());
        }
        let ids = [("bos_token_id", self.bos), ("pad_token_id", self.padding)];
        config.extend(ids.into_iter().filter_map(|(name, id)| Some((name.to_owned(), json!(id?)))));
        config.insert("eos_token_id".to_owned(), json!(all));
        Ok(Json::Object(config).to_string().into_bytes())
    }
}

/// The token that a key names; none by -1, in whatever type that is.
fn id(
    metadata: &Metadata,
    key: &'static str,
    tokens: usize,
) -> Result<Option<u32>, TokenizerError> {
    if let Some(Value::Signed(..0)) = metadata.get(key) {
        return Ok(None);
    }
    match metadata.unsigned(key)? {
        None => Ok(None),
        Some(id) if id == u64::from(u32::MAX) => Ok(None),
        Some(id) => match u32::try_from(id) {
            Ok(id) if (id as usize) < tokens => Ok(Some(id)),
            _ => Err(TokenizerError::Outside { key, id, tokens }),
        },
    }
}

/// The tokens of [`ENDS`] that there are, ascending; all are signs from now on.
///
/// # Errors
/// [`TokenizerError::Same`]
pub(super) fn ends(vocabulary: &mut Vocabulary<'_>) -> Result<Vec<u32>, TokenizerError> {
    let ids = vocabulary.ids()?;
    let has = |text: &str| ids.contains_key(text);
    let has_calls = CALLS.into_iter().any(has);
    let is_end = |text: &str| match text {
        END_OF_PART => !(has_calls && (has(RETURN) || has(FLUSH))),
        SENTENCE_END => !has(TOOL_RESPONSE),
        _ => true,
    };
    let named = ENDS.iter().filter(|text| is_end(text));
    let mut ends: Vec<u32> = named.filter_map(|text| ids.get(text).copied()).collect();
    ends.sort_unstable();
    for &id in &ends {
        vocabulary.kinds[id as usize] = Kind::Control;
    }
    Ok(ends)
}
