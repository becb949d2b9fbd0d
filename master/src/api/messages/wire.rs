//! Anthropic's JSON, as clients send it. Fields that are not known are let be.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api::measure::{Bound, Measured};
use crate::api::said::{Said, listed};
use crate::grammar::bounds;

/// The body of a request.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(in crate::api) struct MessagesRequest {
    pub(super) model: Option<String>,
    pub(super) max_tokens: Option<u64>,
    #[serde(deserialize_with = "listed")]
    pub(super) messages: Vec<Turn>,
    pub(super) system: Option<Said<TextBlock>>,
    pub(super) stream: Option<bool>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<u64>,
    pub(super) stop_sequences: Option<Vec<String>>,
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) tool_choice: Option<Choice>,
    pub(super) thinking: Option<Kind>,
    pub(super) output_config: Option<OutputConfig>,
    /// Tools that this server would have to call.
    pub(super) mcp_servers: Option<Vec<Value>>,
}

/// What one of both sides said in its turn.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Turn {
    pub(super) role: String,
    pub(super) content: Said<Block>,
}

/// A block of which nothing but text is known.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct TextBlock {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) text: Option<String>,
}

/// A block: which of these fields it has, its kind says.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Block {
    #[serde(rename = "type")]
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
    pub(super) kind: Option<String>,
    pub(super) name: String,
    pub(super) input_schema: Option<Value>,
    pub(super) description: Option<String>,
}

/// Whether a tool is called.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(super) struct Choice {
    #[serde(rename = "type")]
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
    pub(super) effort: Option<String>,
    /// What the answer is held to.
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
