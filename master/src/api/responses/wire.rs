//! The JSON of OpenAI's Responses, as clients send it. Fields that are not known are let be.

use std::collections::BTreeMap;

use schemars::Schema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::bounds::{FORMATS, NEW_TOKENS, TOOL_KINDS, TOOL_NAME, TOOLS, TOP_LOGPROBS, WORD};
use crate::api::described::{self, Lacks, Needs};
use crate::api::extent::{Span, Words};
use crate::api::measure::{Bound, Measured};
use crate::api::said::{Said, listed};
use crate::api::wire::Common;
use crate::grammar::bounds;

/// Kinds of items: those that `items` has an arm for, as `held` tries.
const ITEMS: Words = Words(&["message", "reasoning", "function_call", "function_call_output"]);
/// Who says something.
pub(super) const ROLES: Words = Words(&["user", "assistant", "system", "developer"]);
/// Kinds of parts.
const PARTS: Words = Words(&[TEXTS[0], TEXTS[1], THOUGHTS[0], THOUGHTS[1]]);
/// Kinds of parts that are text, of whoever said it.
pub(super) const TEXTS: [&str; 2] = ["input_text", "output_text"];
/// Kinds of parts that are thoughts.
pub(super) const THOUGHTS: [&str; 2] = ["reasoning_text", "summary_text"];

/// How much is said, and what becomes of what is too long: what is done anyway.
pub(super) const VERBOSITIES: Words = Words(&["medium"]);
pub(super) const TRUNCATIONS: Words = Words(&["disabled"]);

/// Answers to one request.
pub(super) const ONE: Span<u64> = Span { low: 1, high: 1 };

fn one_answer(schema: &mut Schema) {
    if let Some(maximum) = schema.pointer_mut("/properties/n/maximum") {
        *maximum = json!(ONE.high);
    }
}

/// The body of a request.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[schemars(transform = Lacks(&["max_tokens", "max_completion_tokens"]), transform = one_answer)]
pub(in crate::api) struct ResponsesRequest {
    pub(super) input: Said<Item>,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    pub(super) store: Option<bool>,
    #[schemars(transform = { TOOLS })]
    pub(super) tools: Option<Vec<Tool>>,
    #[serde(default)]
    #[schemars(schema_with = "described::flat_choice")]
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) text: Option<TextConfig>,
    #[schemars(transform = { NEW_TOKENS })]
    pub(super) max_output_tokens: Option<u64>,
    #[schemars(transform = { TOP_LOGPROBS })]
    pub(super) top_logprobs: Option<u64>,
    pub(super) include: Option<Vec<String>>,
    pub(super) reasoning: Option<Reasoning>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    #[schemars(transform = { TRUNCATIONS })]
    pub(super) truncation: Option<String>,
    pub(super) background: Option<bool>,
    /// What only OpenAI's servers have: a conversation that they keep,
    #[serde(default)]
    #[schemars(with = "()")]
    pub(super) conversation: Option<IgnoredAny>,
    /// a prompt that somebody wrote there,
    #[serde(default)]
    #[schemars(with = "()")]
    pub(super) prompt: Option<IgnoredAny>,
    /// and a way to make a long conversation shorter.
    #[serde(default)]
    #[schemars(with = "()")]
    pub(super) context_management: Option<IgnoredAny>,
    /// How tokens are chosen, and what else a chat has.
    #[serde(flatten)]
    pub(super) common: Common,
}

/// One step of a conversation: which of these fields it has, its type says. It is written as it is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize, schemars::JsonSchema)]
pub(super) struct Item {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    /// A message, if it is left out.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(transform = { ITEMS })]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<String>,
    /// Of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = { ROLES })]
    pub(super) role: Option<String>,
    /// Of a thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) summary: Option<Vec<Part>>,
    /// Of a message or a thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Said<Part>>,
    /// Of a call, and of what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call_id: Option<String>,
    /// Of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) arguments: Option<String>,
    /// Of what came of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<Said<Part>>,
}

/// A part of what is said.
#[derive(Clone, Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[schemars(rename = "ResponsesPart", transform = Needs(&["text"]))]
pub(super) struct Part {
    #[serde(rename = "type")]
    #[schemars(transform = { PARTS })]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
    /// Of what the model said: none, as it looks nothing up.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub(super) annotations: Option<[(); 0]>,
}

/// A function that the model may call. Of other tools no more than the type is of interest.
#[derive(Debug, Deserialize, Serialize, schemars::JsonSchema)]
#[schemars(rename = "ResponsesTool", transform = Needs(&["name"]))]
pub(super) struct Tool {
    #[serde(rename = "type")]
    #[schemars(transform = { TOOL_KINDS })]
    pub(super) kind: String,
    #[serde(default)]
    #[schemars(transform = { TOOL_NAME })]
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parameters: Option<Value>,
    pub(super) strict: Option<bool>,
}

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct TextConfig {
    /// What the answer is held to.
    pub(super) format: Option<Format>,
    #[schemars(transform = { VERBOSITIES })]
    pub(super) verbosity: Option<String>,
}

#[derive(Debug, Deserialize, Serialize, schemars::JsonSchema)]
pub(super) struct Format {
    #[serde(rename = "type")]
    #[schemars(transform = { FORMATS })]
    pub(super) kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) strict: Option<bool>,
}

#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub(super) struct Reasoning {
    #[schemars(transform = { WORD })]
    pub(super) effort: Option<String>,
}

impl Measured for ResponsesRequest {
    // As those of a chat.
    const BOUNDS: &'static [Bound] = &[
        Bound { field: "tools", bytes: 512 << 10, values: bounds::MAX_VALUES },
        Bound { field: "text", bytes: 2 * bounds::MAX_BYTES, values: 2 * bounds::MAX_VALUES },
        Bound { field: "tool_choice", bytes: 4 << 10, values: 64 },
        Bound { field: "include", bytes: 4 << 10, values: 64 },
        // Sixteen pairs of OpenAI's length, in letters of up to four bytes.
        Bound { field: "metadata", bytes: 40 << 10, values: 64 },
    ];
}

/// The items of a conversation so far, which have the bounds of a body.
#[derive(Debug, Deserialize)]
pub(super) struct Items(#[serde(deserialize_with = "listed")] pub(super) Vec<Item>);

impl Measured for Items {
    const BOUNDS: &'static [Bound] = &[];
}
