//! A request of Anthropic's API as one for a chat.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::wire::{
    Block, CHOICES, Choice, MessagesRequest, OutputConfig, ROLES, TOOL_KINDS, TextBlock, Tool, Turn,
};
use crate::api::error::ApiError;
use crate::api::said::{MAX_MESSAGES, Said};
use crate::api::wire::{
    self, ChatMessage, ChatRequest, Common, Function, JsonSchema, OneOrMany, ResponseFormat,
};

/// The same request as for a chat.
///
/// # Errors
/// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be said so.
pub(super) fn chat(request: MessagesRequest) -> Result<ChatRequest, ApiError> {
    if request.mcp_servers.is_some_and(|servers| !servers.is_empty()) {
        return Err(ApiError::Unsupported { param: "mcp_servers" });
    }
    if request.messages.is_empty() {
        return Err(ApiError::parameter("messages", "empty", "at least one"));
    }
    // An answer that was begun is continued.
    let is_begun = request.messages.last().is_some_and(|turn| turn.role == "assistant");
    let OutputConfig { effort, format } = request.output_config.unwrap_or_default();
    let choice = request.tool_choice;
    let at_once = choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let thinks = request.thinking.is_some_and(|thinking| thinking.kind != "disabled");
    let tools = request.tools.map(|tools| tools.into_iter().map(tool).collect());
    Ok(ChatRequest {
        messages: messages(request.system, request.messages)?,
        logprobs: None,
        top_logprobs: None,
        tools: tools.transpose()?,
        tool_choice: choice.map(tool_choice).transpose()?,
        parallel_tool_calls: at_once.map(|not| !not),
        response_format: format.map(|mut format| ResponseFormat {
            kind: format.get("type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            json_schema: Some(JsonSchema { schema: format.remove("schema") }),
        }),
        chat_template_kwargs: None,
        // Who does not ask for thoughts gets none, where the template lets them be left out.
        enable_thinking: Some(thinks),
        reasoning_effort: effort,
        add_generation_prompt: None,
        continue_final_message: Some(is_begun),
        common: Common {
            model: request.model,
            stream: request.stream,
            max_tokens: request.max_tokens,
            temperature: request.temperature,
            top_p: request.top_p,
            top_k: request.top_k,
            stop: request.stop_sequences.map(OneOrMany::Many),
            ..Common::default()
        },
    })
}

fn tool(tool: Tool) -> Result<wire::Tool, ApiError> {
    let Tool { kind, name, input_schema, description } = tool;
    if let Some(kind) = kind.filter(|kind| !TOOL_KINDS.has(kind)) {
        let kind: String = kind.chars().take(64).collect();
        let expected = "tools that the client calls, with an input_schema";
        return Err(ApiError::parameter("tools", format!("one of type {kind:?}"), expected));
    }
    let description = description.map(|text| ("description".to_owned(), json!(text)));
    let more = description.into_iter().collect();
    let function = Function { name, parameters: input_schema, more };
    Ok(wire::Tool { kind: "function".to_owned(), function })
}

fn tool_choice(choice: Choice) -> Result<Value, ApiError> {
    match (choice.kind.as_str(), choice.name) {
        ("auto" | "none", _) => Ok(json!(choice.kind)),
        ("any", _) => Ok(json!("required")),
        ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
        _ => {
            let expected = format!("of type {CHOICES}, with a name beside \"tool\"");
            Err(ApiError::parameter("tool_choice", "something else", expected))
        }
    }
}

/// All turns as messages. What tools answered becomes messages of their own, in the order that they have.
fn messages(
    system: Option<Said<TextBlock>>,
    turns: Vec<Turn>,
) -> Result<Vec<ChatMessage>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = system {
        messages.push(ChatMessage::new("system", texts(system)?));
    }
    let mut called = HashMap::new();
    for Turn { role, content } in turns {
        match role.as_str() {
            "user" => user(content, &called, &mut messages)?,
            "assistant" => messages.push(assistant(content, &mut called)?),
            "system" => messages.push(ChatMessage::new("system", all_text(content)?)),
            _ => {
                let found: String = role.chars().take(64).collect();
                return Err(ApiError::parameter("messages.role", json!(found), ROLES.to_string()));
            }
        }
        if messages.len() > MAX_MESSAGES {
            let expected = format!("at most {MAX_MESSAGES}, each result of a call among them");
            return Err(ApiError::parameter("messages", "more of them", expected));
        }
    }
    Ok(messages)
}

/// What a user says: texts, and what the tools that were called answered.
fn user(
    content: Said<Block>,
    called: &HashMap<String, String>,
    messages: &mut Vec<ChatMessage>,
) -> Result<(), ApiError> {
    let blocks = match content {
        Said::Text(text) => {
            messages.push(ChatMessage::new("user", text));
            return Ok(());
        }
        Said::Blocks(blocks) => blocks,
    };
    let mut said = Vec::new();
    let flush = |said: &mut Vec<String>, messages: &mut Vec<ChatMessage>| {
        if !said.is_empty() {
            messages.push(ChatMessage::new("user", std::mem::take(said).join("\n")));
        }
    };
    let is_empty = blocks.is_empty();
    for block in blocks {
        match (block.kind.as_str(), block.tool_use_id) {
            ("tool_result", Some(id)) => {
                flush(&mut said, messages);
                let answer = block.content.map(texts).transpose()?.unwrap_or_default();
                let name = called.get(&id).cloned();
                let of_tool = ChatMessage::new("tool", answer);
                messages.push(ChatMessage { tool_call_id: Some(id), name, ..of_tool });
            }
            _ => said.push(text_of(block.kind, block.text)?),
        }
    }
    if is_empty {
        said.push(String::new());
    }
    flush(&mut said, messages);
    Ok(())
}

/// What the model said, thought and called before; the names of its calls go to `called`, by their ids.
fn assistant(
    content: Said<Block>,
    called: &mut HashMap<String, String>,
) -> Result<ChatMessage, ApiError> {
    let blocks = match content {
        Said::Text(text) => return Ok(ChatMessage::new("assistant", text)),
        Said::Blocks(blocks) => blocks,
    };
    let (mut said, mut thought, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        let Block { kind, text, thinking, id, name, input, .. } = block;
        match (kind.as_str(), thinking, name) {
            ("thinking", Some(thinking), _) => thought.push(thinking),
            // Thoughts that only Anthropic's servers can read.
            ("redacted_thinking", ..) => {}
            ("tool_use", _, Some(name)) => {
                let arguments = input.unwrap_or_else(|| json!({}));
                let id = id.unwrap_or_default();
                calls.push(json!({
                    "id": id, "type": "function", "function": { "name": name, "arguments": arguments },
                }));
                called.insert(id, name);
            }
            _ => said.push(text_of(kind, text)?),
        }
    }
    Ok(ChatMessage {
        reasoning_content: (!thought.is_empty()).then(|| thought.join("\n")),
        tool_calls: (!calls.is_empty()).then_some(calls),
        ..ChatMessage::new("assistant", said.join("\n"))
    })
}

/// Texts joined.
fn texts(said: Said<TextBlock>) -> Result<String, ApiError> {
    said.joined(|block| text_of(block.kind, block.text))
}

/// The same of blocks that might be others, and may not.
fn all_text(said: Said<Block>) -> Result<String, ApiError> {
    said.joined(|block| text_of(block.kind, block.text))
}

/// The text of a block, which may be of no other kind.
fn text_of(kind: String, text: Option<String>) -> Result<String, ApiError> {
    match (kind.as_str(), text) {
        ("text", Some(text)) => Ok(text),
        _ => {
            let kind: String = kind.chars().take(64).collect();
            let found = format!("a block of type {kind:?} that is not known here or not whole");
            Err(ApiError::parameter("messages", found, "text, thoughts, calls and their results"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::Content;

    /// The messages of a chat, as far as they are text.
    fn chat_of(request: Value) -> Result<(ChatRequest, Vec<(String, String)>), ApiError> {
        let request = chat(serde_json::from_value(request).expect("a request"))?;
        let said = request.messages.iter().map(|message| {
            let Some(Content::Text(text)) = &message.content else { panic!("{message:?}") };
            (message.role.clone(), text.clone())
        });
        let said = said.collect();
        Ok((request, said))
    }

    #[test]
    fn turns_become_messages_and_results_ones_of_their_own() {
        let (request, said) = chat_of(json!({
            "model": "m", "max_tokens": 5, "stop_sequences": ["a"],
            "system": [{ "type": "text", "text": "Be", "cache_control": { "type": "ephemeral" } },
                       { "type": "text", "text": "brief." }],
            "messages": [
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Look.", "signature": "x" },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t1", "name": "weather", "input": { "in": "Rome" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "sun" }] },
                    { "type": "tool_result", "tool_use_id": "t2" },
                    { "type": "text", "text": "And?" },
                ] },
            ],
            "tools": [{ "name": "weather", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "weather", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
        }))
        .unwrap();
        let expected = [
            ("system", "Be\nbrief."),
            ("user", "Weather?"),
            ("assistant", "I look."),
            ("tool", "sun"),
            ("tool", ""),
            ("user", "And?"),
        ];
        assert_eq!(said, expected.map(|(role, text)| (role.to_owned(), text.to_owned())));
        let [_, _, assistant, first, second, _] = &request.messages[..] else { panic!() };
        assert_eq!(assistant.reasoning_content.as_deref(), Some("Look."));
        let call = &assistant.tool_calls.as_ref().unwrap()[0];
        assert_eq!(call["function"]["arguments"]["in"], "Rome");
        assert_eq!(first.name.as_deref(), Some("weather"));
        assert_eq!((second.name.as_deref(), second.tool_call_id.as_deref()), (None, Some("t2")));
        assert_eq!(request.tools.unwrap()[0].function.more["description"], "d");
        assert_eq!(request.tool_choice.unwrap()["function"]["name"], "weather");
        assert_eq!(
            (request.parallel_tool_calls, request.enable_thinking),
            (Some(false), Some(true))
        );
        assert_eq!(request.common.max_tokens, Some(5));
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let user = json!([{ "role": "user", "content": "a" }]);
        let block = |block: Value| json!([{ "role": "user", "content": [block] }]);
        for (field, value, named) in [
            ("messages", block(json!({ "type": "image", "source": {} })), "\"image\""),
            ("messages", block(json!({ "type": "text" })), "not whole"),
            ("messages", json!([{ "role": "tool", "content": "a" }]), "messages.role"),
            ("tools", json!([{ "type": "web_search_20250305", "name": "w" }]), "web_search"),
            ("tool_choice", json!({ "type": "tool" }), "tool_choice"),
            ("mcp_servers", json!([{ "type": "url" }]), "mcp_servers"),
        ] {
            let mut request = json!({ "messages": user, "max_tokens": 1 });
            request[field] = value;
            let refused = chat_of(request).map(drop).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
        let (request, _) = chat_of(json!({ "messages": user, "mcp_servers": [] })).unwrap();
        assert_eq!(request.enable_thinking, Some(false));
        assert_eq!(request.continue_final_message, Some(false));
        let begun =
            json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }]);
        let (request, said) = chat_of(json!({ "messages": begun })).unwrap();
        assert_eq!((request.continue_final_message, said.len()), (Some(true), 2));
    }

    #[test]
    fn results_are_counted_and_nothing_is_copied_for_each_level() {
        let result = json!({ "type": "tool_result", "tool_use_id": "" });
        let turn = json!({ "role": "user", "content": vec![result; MAX_MESSAGES / 2 + 1] });
        let request = json!({ "messages": [turn, turn] });
        assert!(chat_of(request).map(drop).unwrap_err().to_string().contains("at most 10000"));
        // As deep as JSON is read: refused for its kind, as what a tool answers has no results in it.
        let mut deep = json!("a");
        for _ in 0..40 {
            deep = json!([{ "type": "tool_result", "tool_use_id": "", "content": deep }]);
        }
        let request = json!({ "messages": [{ "role": "user", "content": deep }] });
        assert!(chat_of(request).map(drop).unwrap_err().to_string().contains("tool_result"));
        let (_, said) = chat_of(json!({ "messages": [
            { "role": "system", "content": [{ "type": "text", "text": "Be brief." }] },
            { "role": "user", "content": "a" },
        ] }))
        .unwrap();
        assert_eq!(said[0], ("system".to_owned(), "Be brief.".to_owned()));
    }

    #[test]
    fn a_format_is_one_of_a_chat() {
        let (request, _) = chat_of(json!({
            "messages": [{ "role": "user", "content": [] }],
            "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": { "type": "object" } } },
        }))
        .unwrap();
        assert_eq!(request.reasoning_effort.as_deref(), Some("low"));
        let format = request.response_format.unwrap();
        assert_eq!(format.kind, "json_schema");
        assert_eq!(format.json_schema.unwrap().schema, Some(json!({ "type": "object" })));
    }
}
