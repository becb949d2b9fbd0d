//! A request of Ollama's API as one for a chat.

use serde_json::{Value, json};

use super::wire::{ChatRequest, GenerateRequest, LEVELS, Message, Shared, Think};
use crate::api::chat::Asked;
use crate::api::error::ApiError;
use crate::api::wire::{self, ChatMessage, Common, Content, JsonSchema, ResponseFormat};

/// What a request asks for, as far as that can be known without a model.
pub(super) struct Asking {
    /// Whether it is to think; the template decides where nobody says.
    pub(super) thinks: bool,
    /// `None` where nothing is asked.
    pub(super) asked: Option<Asked>,
    /// How many tokens the context is to have room for, if that is said.
    num_ctx: Option<i64>,
}

impl Asking {
    /// Looks whether a context of so many tokens will do.
    ///
    /// # Errors
    /// [`ApiError::Parameter`].
    pub(super) fn fits(&self, context: usize) -> Result<(), ApiError> {
        let is_more = |asked: &i64| usize::try_from(*asked).unwrap_or(0) > context;
        let Some(found) = self.num_ctx.filter(is_more) else { return Ok(()) };
        let expected = format!("at most {context}, the context of this server");
        Err(ApiError::parameter("num_ctx", found, expected))
    }
}

/// What a chat asks for, of whichever model.
///
/// # Errors
/// [`ApiError::Parameter`] and [`ApiError::Unsupported`] for what cannot be done.
pub(super) fn chat(request: ChatRequest) -> Result<Asking, ApiError> {
    let ChatRequest { messages, tools, tool_choice, shared } = request;
    // An answer that was begun is continued, unless that would make it break off elsewhere: behind calls, or a format.
    let is_begun = messages.last().is_some_and(|last| {
        let calls = last.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        last.role == "assistant" && !calls && shared.format.is_none()
    });
    let messages = messages.into_iter().map(message).collect::<Result<Vec<_>, _>>()?;
    shared.asking(messages, |request| {
        let continue_final_message = Some(is_begun);
        Asked::new(wire::ChatRequest { tools, tool_choice, continue_final_message, ..request })
    })
}

/// The same of a prompt.
///
/// # Errors
/// As [`chat`].
pub(super) fn generate(request: GenerateRequest) -> Result<Asking, ApiError> {
    let GenerateRequest { prompt, system, raw, shared } = request;
    let raw = raw.unwrap_or(false);
    let system = system.filter(|text| !text.is_empty());
    if raw && system.is_some() {
        return Err(ApiError::parameter("raw", "true", "false beside system"));
    }
    let messages = match prompt.filter(|text| !text.is_empty()) {
        None => Vec::new(),
        Some(prompt) => {
            let system = system.map(|text| said("system", Some(text)));
            system.into_iter().chain([said("user", Some(prompt))]).collect()
        }
    };
    shared.asking(messages, |request| {
        let asked = Asked::new(request)?;
        Ok(if raw { asked.raw() } else { asked })
    })
}

impl Shared {
    /// What is asked for with these messages, if there are any.
    fn asking(
        self,
        messages: Vec<ChatMessage>,
        ask: impl FnOnce(wire::ChatRequest) -> Result<Asked, ApiError>,
    ) -> Result<Asking, ApiError> {
        self.unmet.check()?;
        let options = self.options.unwrap_or_default();
        let num_ctx = options.num_ctx;
        let common = options.common()?;
        let (enable_thinking, reasoning_effort) = self.think.map_or(Ok((None, None)), think)?;
        let response_format = self.format.map_or(Ok(None), format)?;
        let request = |messages| wire::ChatRequest {
            messages,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs.filter(|count| *count > 0),
            tools: None,
            tool_choice: None,
            parallel_tool_calls: None,
            response_format,
            chat_template_kwargs: None,
            enable_thinking,
            reasoning_effort,
            add_generation_prompt: None,
            continue_final_message: None,
            common: Common { stream: Some(self.stream.unwrap_or(true)), ..common },
        };
        let is_asked = !messages.is_empty();
        // What is said beside nothing is looked at, too.
        let messages = if is_asked { messages } else { vec![said("user", Some(String::new()))] };
        let asked = ask(request(messages))?;
        Ok(Asking {
            thinks: enable_thinking == Some(true),
            asked: is_asked.then_some(asked),
            num_ctx,
        })
    }
}

/// What the template is told of thinking: whether, and how much.
fn think(said: Think) -> Result<(Option<bool>, Option<String>), ApiError> {
    match said {
        Think::Whether(whether) => Ok((Some(whether), None)),
        Think::Level(level) if LEVELS.has(&level) => Ok((Some(true), Some(level))),
        Think::Level(level) => {
            let found: String = level.chars().take(64).collect();
            let expected = format!("true, false, {LEVELS}");
            Err(ApiError::parameter("think", json!(found), expected))
        }
    }
}

/// What the answer is held to, if to anything.
fn format(said: Value) -> Result<Option<ResponseFormat>, ApiError> {
    let of_kind = |kind: &str, json_schema| ResponseFormat { kind: kind.to_owned(), json_schema };
    match said {
        Value::Null => Ok(None),
        Value::String(word) if word.is_empty() => Ok(None),
        Value::String(word) if word == "json" => Ok(Some(of_kind("json_object", None))),
        schema @ Value::Object(_) => {
            Ok(Some(of_kind("json_schema", Some(JsonSchema { schema: Some(schema) }))))
        }
        other => {
            let found: String = other.to_string().chars().take(64).collect();
            Err(ApiError::parameter("format", found, "\"json\" or a schema"))
        }
    }
}

fn said(role: &str, content: Option<String>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        content: content.map(Content::Text),
        ..ChatMessage::default()
    }
}

/// A message as one of a chat; calls that were made are functions, which Ollama does not say.
fn message(message: Message) -> Result<ChatMessage, ApiError> {
    let Message { role, content, thinking, images, tool_calls, tool_name, tool_call_id } = message;
    if images.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::Unsupported { param: "images" });
    }
    let mut tool_calls = tool_calls.filter(|calls| !calls.is_empty());
    for call in tool_calls.iter_mut().flatten().filter_map(Value::as_object_mut) {
        call.entry("type").or_insert_with(|| json!("function"));
    }
    let reasoning_content = thinking.filter(|thought| !thought.is_empty());
    let of_role = said(&role, content);
    Ok(ChatMessage { reasoning_content, tool_calls, tool_call_id, name: tool_name, ..of_role })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: usize = 4096;

    fn fitting(asking: Result<Asking, ApiError>) -> Result<Asking, ApiError> {
        asking.and_then(|asking| asking.fits(CONTEXT).map(|()| asking))
    }

    fn refused(asking: Result<Asking, ApiError>) -> String {
        asking.map(drop).unwrap_err().of_ollama()["error"].as_str().unwrap().to_owned()
    }

    fn chat_of(request: Value) -> Result<Asking, ApiError> {
        fitting(chat(serde_json::from_value(request).expect("a request")))
    }

    fn generate_of(request: Value) -> Result<Asking, ApiError> {
        fitting(generate(serde_json::from_value(request).expect("a request")))
    }

    #[test]
    fn a_message_is_one_of_a_chat() {
        let call = json!({ "function": { "name": "f", "arguments": { "a": 1 } } });
        let of = |value: Value| message(serde_json::from_value(value).unwrap()).unwrap();
        let assistant = of(json!({
            "role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [call], "images": [],
        }));
        assert_eq!(assistant.reasoning_content.as_deref(), Some("Hm"));
        let calls = assistant.tool_calls.unwrap();
        assert_eq!(calls[0]["type"], "function");
        assert_eq!(calls[0]["function"]["arguments"], json!({ "a": 1 }));
        let tool = of(json!({ "role": "tool", "content": "sun", "tool_name": "f" }));
        assert_eq!((tool.role.as_str(), tool.name.as_deref()), ("tool", Some("f")));
        assert!(matches!(tool.content, Some(Content::Text(text)) if text == "sun"));
    }

    #[test]
    fn whoever_asks_nothing_has_the_model_loaded() {
        for messages in [json!([]), Value::Null] {
            let asking = chat_of(json!({ "model": "m", "messages": messages })).unwrap();
            assert!(asking.asked.is_none());
        }
        assert!(chat_of(json!({})).unwrap().asked.is_none());
        for request in [json!({}), json!({ "prompt": "" }), json!({ "system": "Be brief." })] {
            assert!(generate_of(request).unwrap().asked.is_none());
        }
        let hot = json!({ "options": { "temperature": 9 } });
        let said = [refused(chat_of(hot.clone())), refused(generate_of(hot))];
        assert!(said.iter().all(|it| it.starts_with("options.temperature is 9")), "{said:?}");
        assert!(generate_of(json!({ "prompt": "a", "raw": true })).unwrap().asked.is_some());
    }

    #[test]
    fn thinking_is_a_flag_or_a_level() {
        let thinks = |think: Value| {
            let asking = chat_of(json!({ "messages": [], "think": think }));
            asking.map(|asking| asking.thinks).map_err(|error| error.to_string())
        };
        assert_eq!(thinks(Value::Null), Ok(false));
        assert_eq!((thinks(json!(true)), thinks(json!(false))), (Ok(true), Ok(false)));
        assert_eq!(thinks(json!("low")), Ok(true));
        assert!(thinks(json!("much")).unwrap_err().starts_with("think is \"much\""));
        assert_eq!(think(Think::Level("high".into())).unwrap(), (Some(true), Some("high".into())));
        assert_eq!(think(Think::Whether(false)).unwrap(), (Some(false), None));
    }

    #[test]
    fn a_format_is_any_json_or_a_schema() {
        let kind = |said: Value| format(said).map(|format| format.map(|format| format.kind));
        assert_eq!(kind(json!("")).unwrap(), None);
        assert_eq!(kind(json!("json")).unwrap().as_deref(), Some("json_object"));
        let schema = json!({ "type": "object" });
        let held = format(schema.clone()).unwrap().unwrap();
        assert_eq!(
            (held.kind.as_str(), held.json_schema.unwrap().schema),
            ("json_schema", Some(schema))
        );
        assert!(kind(json!("xml")).unwrap_err().to_string().starts_with("format is \"xml\""));
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let user = json!([{ "role": "user", "content": "a" }]);
        for (field, value, named) in [
            (
                "messages",
                json!([{ "role": "user", "content": "a", "images": ["aGk="] }]),
                "images is not",
            ),
            ("messages", json!([{ "role": "robot", "content": "a" }]), "messages.role is"),
            ("options", json!({ "num_ctx": 9999 }), "options.num_ctx is 9999"),
            ("options", json!({ "mirostat": 1 }), "options.mirostat is not"),
            ("format", json!({ "type": "nothing" }), "format"),
            ("top_logprobs", json!(2), "top_logprobs is given"),
        ] {
            let mut request = json!({ "messages": user });
            request[field] = value;
            let said = refused(chat_of(request));
            assert!(said.starts_with(named), "{said}");
        }
        // Behind its calls, and where a format holds it, the model begins anew.
        let call = json!({ "function": { "name": "f", "arguments": {} } });
        let called = json!([{ "role": "assistant", "content": "", "tool_calls": [call] }]);
        assert!(chat_of(json!({ "messages": called })).is_ok());
        let said = json!([{ "role": "assistant", "content": "a" }]);
        assert!(chat_of(json!({ "messages": said, "format": "json" })).is_ok());
        for (field, value, named) in [
            ("template", json!("{{ .Prompt }}"), "template is not"),
            ("suffix", json!("b"), "suffix is not"),
            ("images", json!(["aGk="]), "images is not"),
            ("context", json!([1, 2]), "context is not"),
            ("raw", json!(true), "raw is true"),
        ] {
            let mut request = json!({ "prompt": "a", "system": "b" });
            request[field] = value;
            let said = refused(generate_of(request));
            assert!(said.starts_with(named), "{said}");
        }
        let harmless = json!({ "prompt": "a", "suffix": "", "images": [], "keep_alive": "5m", "context": null });
        assert!(generate_of(harmless).is_ok());
    }
}
