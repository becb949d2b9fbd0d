//! A request for a response as one for a chat, and what of it is repeated and kept.

use serde_json::{Map, Value, json};

use super::items::{messages, numbered};
use super::wire::{Item, ONE, ResponsesRequest, TRUNCATIONS, Tool, VERBOSITIES};
use crate::api::bounds::TOP_LOGPROBS;
use crate::api::error::ApiError;
use crate::api::said::Said;
use crate::api::wire::{self, ChatRequest, Common, Function, JsonSchema, ResponseFormat};

/// What a client includes that wants log-probabilities. Whatever else there is to include, no answer has here.
const LOGPROBS: &str = "message.output_text.logprobs";

/// What is left of a request beside the chat that it is.
#[derive(Debug)]
pub(super) struct Record {
    /// The fields by which the response repeats what was asked for.
    pub(super) repeated: Value,
    /// What is stored with the response, if it is to be.
    pub(super) kept: Option<Kept>,
}

/// What was said to the model, and after what.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) before: Option<String>,
    /// A list of items, as JSON.
    pub(super) input: String,
}

impl Record {
    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.input.len());
        kept + self.repeated.to_string().len()
    }

    /// Stores nothing, and says so.
    pub(super) fn forget(&mut self) {
        self.kept = None;
        self.repeated["store"] = json!(false);
    }
}

/// The same request as for a chat that goes on from `earlier`.
///
/// # Errors
/// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be said so.
pub(super) fn chat(
    request: ResponsesRequest,
    earlier: Vec<Item>,
) -> Result<(ChatRequest, Record), ApiError> {
    check(&request)?;
    let repeated = repeated(&request);
    let items = match request.input {
        Said::Text(text) => vec![Item::user(text)],
        Said::Blocks(items) => items,
    };
    let items: Vec<Item> = items.into_iter().map(numbered).collect();
    let input = || json!(items).to_string();
    let kept = request
        .store
        .unwrap_or(true)
        .then(|| Kept { before: request.previous_response_id, input: input() });
    let tools = request.tools.unwrap_or_default();
    let choice = request.tool_choice.map(|choice| tool_choice(choice, &tools)).transpose()?;
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    let logprobs = request.include.is_some_and(|names| names.iter().any(|name| name == LOGPROBS));
    let chat = ChatRequest {
        messages: messages(request.instructions, earlier, items)?,
        logprobs: Some(logprobs),
        top_logprobs: request.top_logprobs.filter(|_| logprobs),
        tools: Some(tools.into_iter().map(tool).collect()),
        tool_choice: choice,
        parallel_tool_calls: request.parallel_tool_calls,
        response_format: request.text.and_then(|text| text.format).map(|format| ResponseFormat {
            kind: format.kind,
            json_schema: Some(JsonSchema { schema: format.schema }),
        }),
        chat_template_kwargs: None,
        enable_thinking: None,
        reasoning_effort: effort,
        add_generation_prompt: None,
        continue_final_message: None,
        common: Common {
            max_completion_tokens: request.max_output_tokens,
            max_tokens: None,
            ..request.common
        },
    };
    Ok((chat, Record { repeated, kept }))
}

/// Refuses what would be another answer than the one that is given here.
fn check(request: &ResponsesRequest) -> Result<(), ApiError> {
    let verbosity = request.text.as_ref().and_then(|text| text.verbosity.as_deref());
    let ways = [
        ("background", request.background == Some(true)),
        ("conversation", request.conversation.is_some()),
        ("prompt", request.prompt.is_some()),
        ("context_management", request.context_management.is_some()),
        ("text.verbosity", verbosity.is_some_and(|verbosity| !VERBOSITIES.has(verbosity))),
    ];
    if let Some((param, _)) = ways.into_iter().find(|(_, is_asked)| *is_asked) {
        return Err(ApiError::Unsupported { param });
    }
    if let Some(found) = request.truncation.as_ref().filter(|found| !TRUNCATIONS.has(found)) {
        let found: String = found.chars().take(64).collect();
        let expected = format!("{TRUNCATIONS}: what does not fit into the context is refused");
        return Err(ApiError::parameter("truncation", json!(found), expected));
    }
    // Also where the answer has none, as nothing includes them.
    TOP_LOGPROBS.check("top_logprobs", request.top_logprobs)?;
    match request.common.n {
        Some(found) if ONE.check("n", Some(found)).is_err() => {
            Err(ApiError::parameter("n", found, "1: it is one response"))
        }
        _ => Ok(()),
    }
}

/// What a response says of its request.
fn repeated(request: &ResponsesRequest) -> Value {
    let text = request.text.as_ref().and_then(|text| text.format.as_ref());
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_ref());
    json!({
        "background": false,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": null,
        "metadata": request.metadata.as_ref().map_or_else(|| json!({}), |metadata| json!(metadata)),
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": request.previous_response_id,
        "reasoning": { "effort": effort, "summary": null },
        "service_tier": "default",
        "store": request.store.unwrap_or(true),
        "temperature": request.common.temperature.map(decimal),
        "text": {
            "format": text.map_or_else(|| json!({ "type": "text" }), |format| json!(format)),
            "verbosity": "medium",
        },
        "tool_choice": request.tool_choice.clone().unwrap_or_else(|| json!("auto")),
        "tools": request.tools.as_deref().unwrap_or_default(),
        "top_logprobs": request.top_logprobs.unwrap_or(0),
        "top_p": request.common.top_p.map(decimal),
        "truncation": "disabled",
    })
}

/// The number that people write for this one: 0.7, not 0.699999988.
pub(super) fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

fn tool(tool: Tool) -> wire::Tool {
    let Tool { kind, name, description, parameters, .. } = tool;
    let description = description.map(|text| ("description".to_owned(), json!(text)));
    let more: Map<String, Value> = description.into_iter().collect();
    wire::Tool { kind, function: Function { name, parameters, more } }
}

fn tool_choice(choice: Value, tools: &[Tool]) -> Result<Value, ApiError> {
    if choice.is_string() {
        return Ok(choice);
    }
    let name = choice["name"].as_str().filter(|_| choice["type"] == "function");
    match name.filter(|name| tools.iter().any(|tool| tool.name == *name)) {
        Some(name) => Ok(json!({ "type": "function", "function": { "name": name } })),
        None => {
            let expected = "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"name\": …} of one of the tools";
            Err(ApiError::parameter("tool_choice", choice, expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(more: Value) -> Result<(ChatRequest, Record), ApiError> {
        let mut request = json!({ "input": "Hello" });
        for (name, value) in more.as_object().expect("fields") {
            request[name] = value.clone();
        }
        // From text, as clients send it.
        chat(serde_json::from_str(&request.to_string()).expect("a request"), Vec::new())
    }

    #[test]
    fn a_request_is_one_for_a_chat_and_repeated() {
        let schema = json!({ "type": "object" });
        let function =
            json!({ "type": "function", "name": "f", "parameters": schema, "strict": true });
        let format = json!({ "type": "json_schema", "name": "n", "schema": schema });
        let (chat, record) = asked(json!({
            "model": "m", "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0.7,
            "tools": [function], "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": format }, "reasoning": { "effort": "none", "summary": "auto" },
            "include": ["reasoning.encrypted_content", LOGPROBS], "top_logprobs": 2, "seed": 3,
            "parallel_tool_calls": false, "metadata": { "a": "b" }, "previous_response_id": "r",
            "of_a_later_version": { "a": [1] },
        }))
        .unwrap();
        assert_eq!(chat.common.model.as_deref(), Some("m"));
        assert_eq!((chat.common.max_completion_tokens, chat.common.seed), (Some(7), Some(3)));
        assert_eq!((chat.logprobs, chat.top_logprobs), (Some(true), Some(2)));
        assert_eq!(chat.tools.as_ref().unwrap()[0].function.parameters, Some(schema.clone()));
        assert_eq!(chat.tool_choice.unwrap()["function"]["name"], "f");
        assert_eq!(chat.parallel_tool_calls, Some(false));
        assert_eq!(chat.response_format.unwrap().json_schema.unwrap().schema, Some(schema));
        assert_eq!(chat.reasoning_effort.as_deref(), Some("none"));
        let said = record.repeated;
        assert_eq!(
            (&said["tools"][0]["name"], &said["tools"][0]["strict"]),
            (&json!("f"), &json!(true))
        );
        assert_eq!((&said["temperature"], &said["metadata"]["a"]), (&json!(0.7), &json!("b")));
        assert_eq!((&said["text"]["format"], &said["store"]), (&format, &json!(true)));
        let kept = record.kept.unwrap();
        assert_eq!(kept.before.as_deref(), Some("r"));
        let input: Value = serde_json::from_str(&kept.input).unwrap();
        assert_eq!(input[0]["content"][0]["text"], "Hello");
    }

    #[test]
    fn what_is_not_asked_for_is_not_done() {
        let (chat, record) = asked(json!({ "store": false, "top_logprobs": 0 })).unwrap();
        assert!(record.kept.is_none());
        assert_eq!((chat.logprobs, chat.top_logprobs), (Some(false), None));
        assert_eq!((chat.enable_thinking, chat.reasoning_effort), (None, None));
        assert_eq!(chat.common.max_completion_tokens, None);
        assert_eq!(record.repeated["text"]["format"], json!({ "type": "text" }));
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (field, value, named) in [
            ("background", json!(true), "background is not supported"),
            ("conversation", json!("conv_1"), "conversation is not supported"),
            ("prompt", json!({ "id": "p" }), "prompt is not supported"),
            ("context_management", json!([{ "type": "compaction" }]), "context_management"),
            ("text", json!({ "verbosity": "low" }), "text.verbosity"),
            ("truncation", json!("auto"), "truncation is \"auto\""),
            ("n", json!(2), "n is 2"),
            ("top_logprobs", json!(21), "top_logprobs is 21"),
            ("tool_choice", json!({ "type": "function", "name": "g" }), "tool_choice"),
            ("tool_choice", json!({ "type": "allowed_tools", "tools": [] }), "tool_choice"),
        ] {
            let refused = asked(json!({ field: value })).map(drop).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
        let harmless = json!({
            "background": false, "conversation": null, "prompt": null, "context_management": null,
            "text": { "verbosity": "medium" }, "truncation": "disabled", "n": 1,
        });
        assert!(asked(harmless).is_ok());
        // What a chat has under another name would be missed.
        let (chat, _) = asked(json!({ "response_format": { "type": "json_object" } })).unwrap();
        assert!(chat.common.unmet.check().is_err());
    }
}
