//! OpenAI's JSON: requests as clients send them and answers as they expect them. Fields that are not
//! known are let be, as clients of newer versions send them, but for those that `unmet` refuses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{Schema, SchemaGenerator};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::bodies::MAX_BODY_BYTES;
use super::bounds::{
    ANSWERS, FORMATS, MAX_LISTED, MESSAGES, NEW_TOKENS, NOTHING, PARTS, PENALTY, REPETITION, ROLES,
    SHARE, TEMPERATURE, TOOL_KINDS, TOOL_NAME, TOOLS, TOP_LOGPROBS, VECTORS, WORD,
};
use super::described::{self, Needs};
use super::error::ApiError;
use super::extent::Length;
use super::measure::{Bound, MAX_IDS, Measured};
use super::said::listed;
use super::unmet::Unmet;
use crate::grammar::bounds;

/// Parameters that chat and plain completions share.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    #[schemars(transform = { NEW_TOKENS })]
    pub(super) max_tokens: Option<u64>,
    #[schemars(transform = { NEW_TOKENS })]
    pub(super) max_completion_tokens: Option<u64>,
    #[schemars(transform = { TEMPERATURE })]
    pub(super) temperature: Option<f32>,
    #[schemars(transform = { SHARE })]
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<u64>,
    #[schemars(transform = { SHARE })]
    pub(super) min_p: Option<f32>,
    #[schemars(transform = { REPETITION })]
    pub(super) repetition_penalty: Option<f32>,
    #[schemars(transform = { PENALTY })]
    pub(super) presence_penalty: Option<f32>,
    #[schemars(transform = { PENALTY })]
    pub(super) frequency_penalty: Option<f32>,
    pub(super) seed: Option<i64>,
    #[schemars(transform = { ANSWERS })]
    pub(super) n: Option<u64>,
    #[schemars(schema_with = "described::stops")]
    pub(super) stop: Option<OneOrMany<String>>,
    #[schemars(schema_with = "described::bias")]
    pub(super) logit_bias: Option<BTreeMap<String, f32>>,
    pub(super) ignore_eos: Option<bool>,
    /// Of all that is not named here.
    #[serde(flatten)]
    pub(super) unmet: Unmet,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

/// A value, or a list of them.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// `POST /v1/chat/completions`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(transform = Needs(&["messages"]))]
pub(super) struct ChatRequest {
    /// None if they are missing.
    #[serde(default, deserialize_with = "listed")]
    #[schemars(transform = { MESSAGES })]
    pub(super) messages: Vec<ChatMessage>,
    pub(super) logprobs: Option<bool>,
    #[schemars(transform = { TOP_LOGPROBS })]
    pub(super) top_logprobs: Option<u64>,
    #[schemars(transform = { TOOLS })]
    pub(super) tools: Option<Vec<Tool>>,
    #[serde(default)]
    #[schemars(schema_with = "described::choice")]
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) response_format: Option<ResponseFormat>,
    /// What the template is told beside messages and tools, by name;
    #[serde(default)]
    #[schemars(schema_with = "described::told")]
    pub(super) chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// one of these by itself,
    pub(super) enable_thinking: Option<bool>,
    /// and another.
    #[schemars(transform = { WORD })]
    pub(super) reasoning_effort: Option<String>,
    /// Whether the template writes what an answer begins with;
    pub(super) add_generation_prompt: Option<bool>,
    /// if not, whether the model goes on with the last message.
    pub(super) continue_final_message: Option<bool>,
    #[serde(flatten)]
    pub(super) common: Common,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct ResponseFormat {
    #[serde(rename = "type")]
    #[schemars(transform = { FORMATS })]
    pub(super) kind: String,
    pub(super) json_schema: Option<JsonSchema>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct JsonSchema {
    pub(super) schema: Option<Value>,
}

/// A function that the model may call.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
pub(super) struct Tool {
    #[serde(rename = "type")]
    #[schemars(transform = { TOOL_KINDS })]
    pub(super) kind: String,
    pub(super) function: Function,
}

#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
pub(super) struct Function {
    #[schemars(transform = { TOOL_NAME })]
    pub(super) name: String,
    /// The schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parameters: Option<Value>,
    /// What else templates may look at, such as its description.
    #[serde(flatten)]
    pub(super) more: serde_json::Map<String, Value>,
}

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
pub(super) struct ChatMessage {
    #[schemars(transform = { ROLES })]
    pub(super) role: String,
    pub(super) content: Option<Content>,
    /// What it thought before.
    pub(super) reasoning_content: Option<String>,
    /// What an assistant's earlier turn called.
    #[serde(default)]
    #[schemars(schema_with = "described::calls")]
    pub(super) tool_calls: Option<Vec<Value>>,
    /// Of a tool's answer.
    pub(super) tool_call_id: Option<String>,
    pub(super) name: Option<String>,
}

impl ChatMessage {
    /// One of this role that says `text`.
    pub(super) fn new(role: &str, text: String) -> Self {
        Self { role: role.to_owned(), content: Some(Content::Text(text)), ..Self::default() }
    }
}

/// What a message says: as a string or in parts.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Part {
    #[serde(rename = "type")]
    #[schemars(transform = { PARTS })]
    pub(super) kind: String,
    #[schemars(required)]
    pub(super) text: Option<String>,
}

impl Measured for ChatRequest {
    const BOUNDS: &'static [Bound] = &[
        // As many tools as are taken, each with a page of description and arguments of some dozen fields.
        Bound { field: "tools", bytes: 512 << 10, values: bounds::MAX_VALUES },
        // A schema's names and texts, and what JSON writes around them.
        Bound {
            field: "response_format",
            bytes: 2 * bounds::MAX_BYTES,
            values: 2 * bounds::MAX_VALUES,
        },
        Bound { field: "tool_choice", bytes: 4 << 10, values: 64 },
        Bound { field: "chat_template_kwargs", bytes: 4 << 10, values: 64 },
    ];
}

impl Measured for CompletionRequest {
    const BOUNDS: &'static [Bound] = &[token_ids("prompt")];
}

impl Measured for EmbeddingsRequest {
    const BOUNDS: &'static [Bound] = &[token_ids("input")];
}

/// A field with texts or token ids in it: of those an id takes little, and of texts and lists not many are read.
pub(super) const fn token_ids(field: &'static str) -> Bound {
    Bound { field, bytes: MAX_BODY_BYTES, values: MAX_IDS }
}

/// `POST /v1/completions`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(transform = described::any_tokens)]
pub(super) struct CompletionRequest {
    #[schemars(schema_with = "described::completion_prompts")]
    pub(super) prompt: Prompt,
    #[schemars(transform = { TOP_LOGPROBS })]
    pub(super) logprobs: Option<u64>,
    pub(super) echo: Option<bool>,
    #[schemars(transform = { NOTHING })]
    pub(super) suffix: Option<String>,
    #[schemars(transform = { ANSWERS })]
    pub(super) best_of: Option<u64>,
    #[serde(flatten)]
    pub(super) common: Common,
}

/// `POST /v1/embeddings`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct EmbeddingsRequest {
    pub(super) model: Option<String>,
    #[schemars(schema_with = "described::inputs")]
    pub(super) input: Prompt,
    #[schemars(transform = { VECTORS })]
    pub(super) encoding_format: Option<String>,
    #[serde(default)]
    #[schemars(with = "()")]
    pub(super) dimensions: Option<u64>,
    #[serde(flatten)]
    pub(super) unmet: Unmet,
}

/// Prompts as text or as token ids; a client may send one or several.
#[derive(Debug)]
pub(super) enum Prompt {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Prompt {
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Ids(ids) => ids.len(),
        }
    }

    /// Looks whether each list of ids has one: nothing comes of none.
    ///
    /// # Errors
    /// [`ApiError::Parameter`].
    pub(super) fn check_ids(&self, param: &'static str) -> Result<(), ApiError> {
        match self {
            Self::Ids(ids) if ids.iter().any(Vec::is_empty) => {
                Err(ApiError::parameter(param, "a list without token ids", "at least one in each"))
            }
            _ => Ok(()),
        }
    }
}

impl schemars::JsonSchema for Prompt {
    fn schema_name() -> Cow<'static, str> {
        "Prompt".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        described::prompts(Length::most(MAX_LISTED))
    }
}

/// Read as it comes, as lists of untold length may.
impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

/// What a list of prompts, or one prompt as a list of ids, has in it.
enum Item {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text, a token id or a list of token ids")
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Item, E> {
        let id = u32::try_from(id);
        id.map(Item::Id).map_err(|_| E::invalid_value(de::Unexpected::Other("a larger id"), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = list.next_element()? {
            ids.push(id);
        }
        Ok(Item::Ids(ids))
    }
}

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text, a list of token ids, or a list of either")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Texts(vec![text.to_owned()]))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Texts(vec![text]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let (mut texts, mut lists, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(item) = list.next_element()? {
            match item {
                Item::Id(id) => ids.push(id),
                Item::Text(text) => texts.push(text),
                Item::Ids(ids) => lists.push(ids),
            }
            let kinds = [texts.is_empty(), lists.is_empty(), ids.is_empty()];
            if kinds.iter().filter(|is_empty| !**is_empty).count() > 1 {
                return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
            }
            if texts.len().max(lists.len()) > MAX_LISTED {
                let many = format!("there are more than {MAX_LISTED} texts or lists of token ids");
                return Err(de::Error::custom(many));
            }
        }
        Ok(match (texts.is_empty(), ids.is_empty()) {
            (false, _) => Prompt::Texts(texts),
            (true, false) => Prompt::Ids(vec![ids]),
            (true, true) => Prompt::Ids(lists),
        })
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) total_tokens: usize,
    pub(super) prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PromptTokensDetails {
    pub(super) cached_tokens: usize,
}

/// Log-probabilities of a chat answer.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ChatLogprobs {
    pub(super) content: Vec<ChatLogprob>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ChatLogprob {
    #[serde(flatten)]
    pub(super) token: TokenLogprob,
    pub(super) top_logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TokenLogprob {
    pub(super) token: String,
    pub(super) logprob: f32,
    pub(super) bytes: Vec<u8>,
}

/// Log-probabilities of a plain completion, one element per token in each list: of a prompt's first token there are none.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    pub(super) tokens: Vec<String>,
    pub(super) token_logprobs: Vec<Option<f32>>,
    pub(super) top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    pub(super) text_offset: Vec<usize>,
}
