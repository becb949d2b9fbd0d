//! Anthropic's JSON, as clients send it. Fields that are not known are let be.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api::bounds::{
    MESSAGES, NEW_TOKENS, NOTHING, PARTS, SHARE, TEMPERATURE, TOOL_NAME, TOOLS, WORD,
};
use crate::api::described;
use crate::api::extent::Words;
use crate::api::measure::{Bound, Measured};
use crate::api::said::{Said, listed};
use crate::grammar::bounds;

/// Whose turn it is.
pub(super) const ROLES: Words = Words(&["user", "assistant", "system"]);
/// Kinds of blocks: those that `ask` has an arm for, as `held` tries.
const BLOCKS: Words = Words(&["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]);
/// Kinds of tools: others are called by Anthropic's servers, or have a schema that only its models know.
pub(super) const TOOL_KINDS: Words = Words(&["custom"]);
/// Whether a tool is called.
pub(super) const CHOICES: Words = Words(&["auto", "any", "none", "tool"]);

/// The body of a request.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(in crate::api) struct MessagesRequest {
    pub(super) model: Option<String>,
    #[schemars(transform = { NEW_TOKENS })]
    pub(super) max_tokens: Option<u64>,
    #[serde(deserialize_with = "listed")]
    #[schemars(transform = { MESSAGES })]
    pub(super) messages: Vec<Turn>,
    pub(super) system: Option<Said<TextBlock>>,
    pub(super) stream: Option<bool>,
    #[schemars(transform = { TEMPERATURE })]
    pub(super) temperature: Option<f32>,
    #[schemars(transform = { SHARE })]
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<u64>,
    #[serde(default)]
    #[schemars(schema_with = "described::stop_list")]
    pub(super) stop_sequences: Option<Vec<String>>,
    #[schemars(transform = { TOOLS })]
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) tool_choice: Option<Choice>,
    pub(super) thinking: Option<Kind>,
    pub(super) output_config: Option<OutputConfig>,
    /// Tools that this server would have to call.
    #[schemars(transform = { NOTHING })]
    pub(super) mcp_servers: Option<Vec<Value>>,
}

/// What one of both sides said in its turn.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Turn {
    #[schemars(transform = { ROLES })]
    pub(super) role: String,
    pub(super) content: Said<Block>,
}

/// A block of which nothing but text is known.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct TextBlock {
    #[serde(rename = "type")]
    #[schemars(transform = { PARTS })]
    pub(super) kind: String,
    #[schemars(required)]
    pub(super) text: Option<String>,
}

/// A block: which of these fields it has, its kind says.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Block {
    #[serde(rename = "type")]
    #[schemars(transform = { BLOCKS })]
    pub(super) kind: String,
    pub(super) text: Option<String>,
    pub(super) thinking: Option<String>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) input: Option<Value>,
    pub(super) tool_use_id: Option<String>,
    /// Of a tool's answer.
    pub(super) content: Option<Said<TextBlock>>,
}

/// A tool that the client calls.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "MessagesTool")]
pub(super) struct Tool {
    #[serde(default, rename = "type")]
    #[schemars(transform = { TOOL_KINDS })]
    pub(super) kind: Option<String>,
    #[schemars(transform = { TOOL_NAME })]
    pub(super) name: String,
    pub(super) input_schema: Option<Value>,
    pub(super) description: Option<String>,
}

/// Whether a tool is called.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Choice {
    #[serde(rename = "type")]
    #[schemars(transform = { CHOICES })]
    pub(super) kind: String,
    pub(super) name: Option<String>,
    pub(super) disable_parallel_tool_use: Option<bool>,
}

/// Something of which only the kind matters here.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Kind {
    #[serde(rename = "type")]
    pub(super) kind: String,
}

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct OutputConfig {
    #[schemars(transform = { WORD })]
    pub(super) effort: Option<String>,
    /// What the answer is held to.
    #[schemars(schema_with = "described::format")]
    pub(super) format: Option<Map<String, Value>>,
}

impl Measured for MessagesRequest {
    // As those of a chat.
    const BOUNDS: &'static [Bound] = &[
        Bound { field: "tools", bytes: 512 << 10, values: bounds::MAX_VALUES },
        Bound {
            field: "output_config",
            bytes: 2 * bounds::MAX_BYTES,
            values: 2 * bounds::MAX_VALUES,
        },
        Bound { field: "tool_choice", bytes: 4 << 10, values: 64 },
        Bound { field: "mcp_servers", bytes: 4 << 10, values: 64 },
    ];
}
