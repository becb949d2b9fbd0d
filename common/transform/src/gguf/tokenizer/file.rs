//! `tokenizer.json`, as far as GGUF has a place for it.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Unsupported;
use crate::gguf::FORMAT;

/// All but the model.
#[derive(Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    pub(super) added_tokens: Vec<Added>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) post_processor: Value,
    model: ModelHead,
}

/// Which model it is: the rest of others is of another form.
#[derive(Deserialize)]
struct ModelHead {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

/// The model alone.
#[derive(Deserialize)]
pub(super) struct WithModel {
    pub(super) model: Model,
}

/// Pairs of pieces that become one, the first ones first.
#[derive(Deserialize)]
pub(super) struct Model {
    pub(super) vocab: HashMap<String, u32>,
    #[serde(default)]
    pub(super) merges: Vec<Merge>,
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) ignore_merges: bool,
}

/// Two pieces that become one.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    /// As newer files have them.
    Pair(String, String),
    /// As older ones have them, with a space between.
    Text(String),
}

/// A token that is found before text is split.
#[derive(Deserialize)]
pub(super) struct Added {
    /// Not where the id is the key.
    #[serde(default)]
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// What pieces are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Bytes, as letters that stand for them.
    Bytes,
    /// Letters, and bytes where there is none, as SentencePiece has them.
    Scored,
}

impl TokenizerFile {
    /// What its pieces are made of.
    ///
    /// # Errors
    /// [`Unsupported::Cannot`] for a model that llama.cpp has under another name, or not at all.
    pub(super) fn kind(&self) -> Result<Kind, Unsupported> {
        let ModelHead { kind, byte_fallback, continuing_subword_prefix, end_of_word_suffix } =
            &self.model;
        let affix = [continuing_subword_prefix, end_of_word_suffix];
        let has_affix = affix.into_iter().flatten().any(|text| !text.is_empty());
        match kind.as_deref() {
            Some("BPE") | None if has_affix => {
                let what = "a tokenizer that marks pieces inside or at the end of words".to_owned();
                Err(Unsupported::Cannot { format: FORMAT, what })
            }
            Some("BPE") | None if *byte_fallback => Ok(Kind::Scored),
            Some("BPE") | None => Ok(Kind::Bytes),
            Some(other) => {
                let what = format!("a tokenizer of the type {other:?}; BPE is written");
                Err(Unsupported::Cannot { format: FORMAT, what })
            }
        }
    }
}

impl Added {
    /// Whether it takes spaces beside it, or is found between words only.
    pub(super) fn is_picky(&self) -> bool {
        self.single_word || self.lstrip || self.rstrip
    }
}

impl Merge {
    /// The two pieces.
    pub(super) fn pair(&self) -> (&str, &str) {
        match self {
            Merge::Pair(left, right) => (left, right),
            // A piece may begin with the space, but is not empty.
            Merge::Text(text) => {
                let second = text.char_indices().nth(1).map_or(0, |(start, _)| start);
                let space = text[second..].find(' ').map(|at| second + at);
                space.map_or((text, ""), |at| (&text[..at], &text[at + 1..]))
            }
        }
    }
}
