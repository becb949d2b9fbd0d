//! Messages of a chat as templates take them.

use serde_json::{Value, json};

use crate::api::bounds::{PARTS, ROLES};
use crate::api::error::ApiError;
use crate::api::measure::parse_text;
use crate::api::wire::{ChatMessage, Content};

/// A message as templates take it: its parts joined, arguments of calls as objects, which take of `room`.
pub(super) fn message(message: ChatMessage, room: &mut usize) -> Result<Value, ApiError> {
    if !ROLES.has(&message.role) {
        let expected = ROLES.to_string();
        return Err(ApiError::parameter("messages.role", json!(message.role), expected));
    }
    let content = match message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let text = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
                (kind, Some(text)) if PARTS.has(kind) => Ok(text),
                (kind, _) => {
                    let found = format!("a part of type {kind:?}");
                    Err(ApiError::parameter("messages", found, format!("parts of type {PARTS}")))
                }
            });
            text.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    };
    // What was the system's role is called the developer's now; templates know the former.
    let role = match message.role.as_str() {
        "developer" => "system".to_owned(),
        _ => message.role,
    };
    let mut fields = json!({ "role": role });
    fields["content"] = Value::String(content); // Moved: it may be long.
    if let Some(mut calls) = message.tool_calls {
        for call in &mut calls {
            let function = call.get_mut("function");
            let Some(arguments) = function.and_then(|function| function.get_mut("arguments"))
            else {
                let expected = "calls of functions with arguments";
                return Err(ApiError::parameter("messages.tool_calls", call, expected));
            };
            let parsed = arguments.as_str().map(|text| parse_text(text, room)).transpose()?;
            if let Some(parsed) = parsed.flatten() {
                *arguments = parsed;
            }
        }
        fields["tool_calls"] = json!(calls);
    }
    for (name, value) in [
        ("reasoning_content", message.reasoning_content),
        ("tool_call_id", message.tool_call_id),
        ("name", message.name),
    ] {
        if let Some(value) = value {
            fields[name] = json!(value);
        }
    }
    Ok(fields)
}
