//! The items of a conversation as messages of a chat.

use std::collections::HashMap;

use serde_json::json;

use super::wire::{Item, Part, ROLES, TEXTS, THOUGHTS};
use crate::api::error::ApiError;
use crate::api::said::{MAX_MESSAGES, Said};
use crate::api::wire::{ChatMessage, Content};

impl Item {
    /// What a user says.
    pub(super) fn user(text: String) -> Self {
        let (role, content) = (Some("user".to_owned()), Some(Said::Text(text)));
        Self { role, content, ..Self::default() }
    }
}

/// An item as it is stored: with an id of its own, a type, and what was said in parts.
pub(super) fn numbered(mut item: Item) -> Item {
    let kind = item.kind.get_or_insert_with(|| "message".to_owned());
    let prefix = match kind.as_str() {
        "message" => "msg",
        "reasoning" => "rs",
        _ => "fc",
    };
    let id = item.id.take().filter(|id| !id.is_empty());
    item.id = Some(id.unwrap_or_else(|| format!("{prefix}_{}", cake_identity::random_token())));
    item.status.get_or_insert_with(|| "completed".to_owned());
    let is_output = item.role.as_deref() == Some("assistant");
    let annotations = is_output.then_some([]);
    item.content = item.content.map(|said| match said {
        Said::Text(text) => {
            let kind = if is_output { "output_text" } else { "input_text" }.to_owned();
            Said::Blocks(vec![Part { kind, text: Some(text), annotations }])
        }
        Said::Blocks(parts) => {
            Said::Blocks(parts.into_iter().map(|part| Part { annotations, ..part }).collect())
        }
    });
    item
}

/// All that was said as messages: `instructions` first, then what came earlier, then what is new.
///
/// # Errors
/// [`ApiError::Parameter`] if there are too many items, or one of a kind that no chat has.
pub(super) fn messages(
    instructions: Option<String>,
    earlier: Vec<Item>,
    items: Vec<Item>,
) -> Result<Vec<ChatMessage>, ApiError> {
    if earlier.len() + items.len() > MAX_MESSAGES {
        let found = format!("{} items with those before it", earlier.len() + items.len());
        return Err(ApiError::parameter("input", found, format!("at most {MAX_MESSAGES}")));
    }
    let mut turns = Turns::default();
    turns.messages.extend(instructions.map(|text| ChatMessage::new("system", text)));
    for item in earlier.into_iter().chain(items) {
        turns.take(item)?;
    }
    turns.flush();
    Ok(turns.messages)
}

/// Messages, of which the model's own may be made of several items.
#[derive(Default)]
struct Turns {
    messages: Vec<ChatMessage>,
    /// The model's message that is not whole yet: what it thought, said and called.
    open: Option<ChatMessage>,
    /// Names of what was called, by the calls' ids.
    called: HashMap<String, String>,
}

impl Turns {
    fn take(&mut self, item: Item) -> Result<(), ApiError> {
        let Item { kind, role, summary, content, call_id, name, arguments, output, .. } = item;
        let kind = kind.unwrap_or_else(|| "message".to_owned());
        match (kind.as_str(), role, content, call_id, output) {
            ("message", Some(role), Some(content), ..) => {
                self.say(&role, text_of(content, &TEXTS)?)
            }
            ("reasoning", _, content, ..) => {
                // Of thoughts that are kept elsewhere, their summary is left.
                let said = content.filter(|content| !content.is_empty());
                let said = said.or(summary.map(Said::Blocks));
                let thought = said.map(|said| text_of(said, &THOUGHTS)).transpose()?;
                self.think(thought.filter(|thought| !thought.is_empty()));
                Ok(())
            }
            ("function_call", _, _, Some(id), _) => match (name, arguments) {
                (Some(name), Some(arguments)) => {
                    self.call(id, name, &arguments);
                    Ok(())
                }
                _ => Err(odd("a function_call without a name or arguments")),
            },
            ("function_call_output", _, _, Some(id), Some(output)) => {
                self.flush();
                let answer = ChatMessage::new("tool", text_of(output, &TEXTS)?);
                let name = self.called.get(&id).cloned();
                self.messages.push(ChatMessage { tool_call_id: Some(id), name, ..answer });
                Ok(())
            }
            _ => Err(odd(&format!(
                "an item of type {:?} that is not known here or not whole",
                short(&kind)
            ))),
        }
    }

    fn say(&mut self, role: &str, text: String) -> Result<(), ApiError> {
        match role {
            "assistant" => {
                if self.open.as_ref().is_some_and(|open| open.content.is_some()) {
                    self.flush();
                }
                self.open().content = Some(Content::Text(text));
                Ok(())
            }
            "user" | "system" | "developer" => {
                self.flush();
                self.messages.push(ChatMessage::new(role, text));
                Ok(())
            }
            _ => Err(ApiError::parameter("input.role", json!(short(role)), ROLES.to_string())),
        }
    }

    /// Thoughts come before what they lead to.
    fn think(&mut self, thought: Option<String>) {
        let has_more = |open: &ChatMessage| open.content.is_some() || open.tool_calls.is_some();
        if self.open.as_ref().is_some_and(has_more) {
            self.flush();
        }
        let Some(thought) = thought else { return };
        let before = &mut self.open().reasoning_content;
        *before = Some(match before.take() {
            Some(before) => before + "\n" + &thought,
            None => thought,
        });
    }

    fn call(&mut self, id: String, name: String, arguments: &str) {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": id, "type": "function", "function": function });
        self.called.insert(id, name);
        self.open().tool_calls.get_or_insert_default().push(call);
    }

    fn open(&mut self) -> &mut ChatMessage {
        let assistant = || ChatMessage { role: "assistant".to_owned(), ..ChatMessage::default() };
        self.open.get_or_insert_with(assistant)
    }

    fn flush(&mut self) {
        self.messages.extend(self.open.take());
    }
}

/// The text of parts that are all of one of these kinds.
fn text_of(said: Said<Part>, kinds: &[&str]) -> Result<String, ApiError> {
    said.joined(|Part { kind, text, .. }| match text {
        Some(text) if kinds.contains(&kind.as_str()) => Ok(text),
        _ => Err(odd(&format!(
            "a part of type {:?} that is not known here or not whole",
            short(&kind)
        ))),
    })
}

fn odd(found: &str) -> ApiError {
    ApiError::parameter(
        "input",
        found,
        "messages, thoughts, calls of functions and their outputs, in text",
    )
}

/// The beginning of what a client sent.
fn short(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn items(items: Value) -> Vec<Item> {
        serde_json::from_str(&items.to_string()).expect("items")
    }

    /// Roles and texts of the messages that items become.
    fn said(messages: &[ChatMessage]) -> Vec<(&str, Option<&str>)> {
        let said = messages.iter().map(|message| {
            let text = message.content.as_ref().map(|content| match content {
                Content::Text(text) => text.as_str(),
                Content::Parts(_) => panic!("{message:?}"),
            });
            (message.role.as_str(), text)
        });
        said.collect()
    }

    #[test]
    fn what_a_model_did_at_once_is_one_message() {
        let earlier = items(json!([
            { "role": "user", "content": "Weather?" },
            { "type": "reasoning", "id": "rs_1", "summary": [],
              "content": [{ "type": "reasoning_text", "text": "Look." }], "encrypted_content": null },
            { "type": "message", "role": "assistant", "status": "completed", "id": "msg_1", "content": [
                { "type": "output_text", "text": "I look.", "annotations": [], "logprobs": [] } ] },
            { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{\"in\":\"Rome\"}" },
            { "type": "function_call", "call_id": "c2", "name": "time", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "sun" },
            { "type": "function_call_output", "call_id": "c3", "output": [{ "type": "input_text", "text": "noon" }] },
            { "type": "reasoning", "id": "rs_2", "summary": [{ "type": "summary_text", "text": "So." }] },
            { "type": "function_call", "call_id": "c4", "name": "time", "arguments": "{}" },
        ]));
        let new = items(json!([
            { "type": "function_call_output", "call_id": "c4", "output": "one" },
            { "role": "assistant", "content": "It is one." },
            { "role": "assistant", "content": "And sunny." },
            { "role": "developer", "content": [{ "type": "input_text", "text": "Be" },
                                               { "type": "input_text", "text": "brief." }] },
        ]));
        let messages = messages(Some("Help.".to_owned()), earlier, new).unwrap();
        let expected = [
            ("system", Some("Help.")),
            ("user", Some("Weather?")),
            ("assistant", Some("I look.")),
            ("tool", Some("sun")),
            ("tool", Some("noon")),
            ("assistant", None),
            ("tool", Some("one")),
            ("assistant", Some("It is one.")),
            ("assistant", Some("And sunny.")),
            ("developer", Some("Be\nbrief.")),
        ];
        assert_eq!(said(&messages), expected);
        assert_eq!(messages[2].reasoning_content.as_deref(), Some("Look."));
        let calls = messages[2].tool_calls.as_ref().unwrap();
        assert_eq!((calls.len(), &calls[0]["id"]), (2, &json!("c1")));
        assert_eq!(calls[0]["function"]["arguments"], "{\"in\":\"Rome\"}");
        assert_eq!(messages[3].name.as_deref(), Some("weather"));
        assert_eq!(
            (messages[4].name.as_deref(), messages[4].tool_call_id.as_deref()),
            (None, Some("c3"))
        );
        assert_eq!(messages[5].reasoning_content.as_deref(), Some("So."));
        assert_eq!(messages[5].tool_calls.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_item_of_a_chat_is_named() {
        for (item, named) in [
            (json!({ "type": "item_reference", "id": "msg_1" }), "\"item_reference\""),
            (json!({ "type": "web_search_call", "id": "ws_1" }), "\"web_search_call\""),
            (json!({ "role": "user" }), "not whole"),
            (json!({ "role": "tool", "content": "a" }), "input.role is \"tool\""),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }),
                "\"input_image\"",
            ),
            (json!({ "role": "user", "content": [{ "type": "input_text" }] }), "not whole"),
            (json!({ "type": "function_call", "call_id": "c", "name": "f" }), "arguments"),
            (json!({ "type": "function_call_output", "call_id": "c" }), "not whole"),
        ] {
            let refused = messages(None, Vec::new(), items(json!([item]))).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
        let many = vec![Item::user(String::new()); MAX_MESSAGES / 2 + 1];
        let refused = messages(None, many.clone(), many).unwrap_err().to_string();
        assert!(refused.contains("10002 items"), "{refused}");
    }

    #[test]
    fn what_is_stored_can_be_read_again() {
        let given = items(json!([
            { "role": "assistant", "content": "a" },
            { "role": "user", "content": [{ "type": "input_text", "text": "b" }], "id": "msg_1" },
            { "type": "function_call_output", "call_id": "c", "output": "d", "id": "" },
        ]));
        let stored: Vec<Item> = given.into_iter().map(numbered).collect();
        let texts = json!(stored);
        assert_eq!(
            texts[0]["content"],
            json!([{ "type": "output_text", "text": "a", "annotations": [] }])
        );
        assert_eq!(texts[1]["content"], json!([{ "type": "input_text", "text": "b" }]));
        assert_eq!((&texts[1]["id"], &texts[1]["type"]), (&json!("msg_1"), &json!("message")));
        assert!(texts[2]["id"].as_str().unwrap().starts_with("fc_"), "{texts}");
        let again = messages(None, Vec::new(), items(texts)).unwrap();
        assert_eq!(
            said(&again),
            [("assistant", Some("a")), ("user", Some("b")), ("tool", Some("d"))]
        );
    }
}
