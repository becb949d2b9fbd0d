//! Ollama's JSON, as clients send it. Fields that are not known are let be, but for those that are refused by name.

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::options::Options;
use crate::api::bounds::{NOTHING, ROLES, TOOLS, TOP_LOGPROBS};
use crate::api::described::{self, Also};
use crate::api::error::ApiError;
use crate::api::extent::{Length, Span, Words};
use crate::api::measure::{Bound, Measured};
use crate::api::said::{MAX_MESSAGES, listed};
use crate::api::unmet::{Harmless, Refused, Unmet};
use crate::api::wire::{Prompt, Tool, token_ids};
use crate::grammar::bounds;
use crate::shelf::Keep;

/// How much a model may be told to think.
pub(super) const LEVELS: Words = Words(&["low", "medium", "high", "max"]);

/// `POST /api/chat`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "OllamaChatRequest")]
pub(in crate::api) struct ChatRequest {
    #[serde(default, deserialize_with = "listed")]
    #[schemars(transform = Length::most(MAX_MESSAGES))]
    pub(super) messages: Vec<Message>,
    #[schemars(transform = { TOOLS })]
    pub(super) tools: Option<Vec<Tool>>,
    /// As in a chat of OpenAI's API: Ollama's has none.
    #[serde(default)]
    #[schemars(schema_with = "described::choice")]
    pub(super) tool_choice: Option<Value>,
    #[serde(flatten)]
    pub(super) shared: Shared,
}

/// `POST /api/generate`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(in crate::api) struct GenerateRequest {
    pub(super) prompt: Option<String>,
    pub(super) system: Option<String>,
    /// Whether the prompt is to be read as it is, without a template.
    pub(super) raw: Option<bool>,
    #[serde(flatten)]
    pub(super) shared: Shared,
}

/// What both have.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct Shared {
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    /// `"json"`, or a schema.
    #[schemars(schema_with = "described::ollama_format")]
    pub(super) format: Option<Value>,
    pub(super) think: Option<Think>,
    pub(super) logprobs: Option<bool>,
    #[schemars(transform = { TOP_LOGPROBS })]
    pub(super) top_logprobs: Option<u64>,
    pub(super) options: Option<Options>,
    /// How long the model stays loaded after this.
    #[serde(deserialize_with = "keep_alive")]
    #[schemars(with = "Option<Value>")]
    pub(super) keep_alive: Option<Keep>,
    /// Of all that is not named here.
    #[serde(flatten)]
    pub(super) unmet: Unmet<InRequests>,
}

/// What would change an answer and is not followed.
#[derive(Debug, Default)]
pub(super) struct InRequests;

impl Refused for InRequests {
    const REFUSED: &'static [(&'static str, Harmless)] = &[
        ("context", Harmless::Empty),
        ("images", Harmless::Empty),
        ("suffix", Harmless::Empty),
        ("template", Harmless::Empty),
    ];
}

/// Whether to think, or how much.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub(super) enum Think {
    Whether(bool),
    Level(#[schemars(transform = { LEVELS })] String),
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "OllamaMessage")]
pub(super) struct Message {
    #[schemars(transform = { ROLES })]
    pub(super) role: String,
    pub(super) content: Option<String>,
    pub(super) thinking: Option<String>,
    #[schemars(with = "Option<Vec<Value>>")]
    #[schemars(transform = { NOTHING })]
    pub(super) images: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    #[schemars(schema_with = "described::calls")]
    pub(super) tool_calls: Option<Vec<Value>>,
    /// Of a tool's answer.
    pub(super) tool_name: Option<String>,
    pub(super) tool_call_id: Option<String>,
}

/// How much shorter vectors are wanted: none are.
const DIMENSIONS: Span<u64> = Span { low: 0, high: 0 };

/// `POST /api/embed`, and `/api/embeddings` with one text as `prompt`.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(transform = Also("input", "prompt"))]
pub(in crate::api) struct EmbedRequest {
    pub(super) model: Option<String>,
    #[serde(default, alias = "prompt")]
    pub(super) input: Option<Prompt>,
    #[schemars(transform = { DIMENSIONS })]
    pub(super) dimensions: Option<u64>,
    #[serde(default, deserialize_with = "keep_alive")]
    #[schemars(with = "Option<Value>")]
    pub(super) keep_alive: Option<Keep>,
}

impl EmbedRequest {
    /// The same.
    ///
    /// # Errors
    /// [`ApiError::Unsupported`] for what no vector here is.
    pub(in crate::api) fn checked(self) -> Result<Self, ApiError> {
        let dimensions = DIMENSIONS.check("dimensions", self.dimensions);
        dimensions.map_err(|_| ApiError::Unsupported { param: "dimensions" })?;
        self.input.as_ref().map_or(Ok(()), |input| input.check_ids("input"))?;
        Ok(self)
    }
}

/// How long a model is to stay loaded, if that is said; what is wrong with it is said by its name.
fn keep_alive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Keep>, D::Error> {
    let said = Option::<Value>::deserialize(deserializer)?;
    let keep = said.map(serde_json::from_value).transpose();
    keep.map_err(|error| D::Error::custom(format!("keep_alive: {error}")))
}

/// Requests that name a model and ask nothing of it.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(in crate::api) struct NameRequest {
    pub(super) model: Option<String>,
    /// Its former name; some clients send both, one of them empty.
    pub(super) name: Option<String>,
    pub(super) stream: Option<bool>,
}

impl NameRequest {
    /// The model that is named, if one is.
    pub(super) fn named(self) -> Option<String> {
        [self.model, self.name].into_iter().flatten().find(|name| !name.is_empty())
    }
}

/// A schema's names and texts, and what JSON writes around them.
const FORMAT: Bound =
    Bound { field: "format", bytes: 2 * bounds::MAX_BYTES, values: 2 * bounds::MAX_VALUES };
/// As many stop strings as are taken, however they are written, and a page of others.
const OPTIONS: Bound = Bound { field: "options", bytes: 128 << 10, values: 1 << 10 };

impl Measured for ChatRequest {
    const BOUNDS: &'static [Bound] = &[
        // As those of a chat.
        Bound { field: "tools", bytes: 512 << 10, values: bounds::MAX_VALUES },
        Bound { field: "tool_choice", bytes: 4 << 10, values: 64 },
        FORMAT,
        OPTIONS,
    ];
}

impl Measured for GenerateRequest {
    const BOUNDS: &'static [Bound] = &[FORMAT, OPTIONS];
}

impl Measured for EmbedRequest {
    const BOUNDS: &'static [Bound] = &[token_ids("input"), token_ids("prompt")];
}

impl Measured for NameRequest {
    const BOUNDS: &'static [Bound] = &[];
}
