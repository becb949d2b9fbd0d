//! Whose words something is said in, and what an error looks like in them, as a shape (`shape`).

use serde_json::{Value, json};

/// Whose words an operation is in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    OpenAi,
    Anthropic,
    /// Of both, by who asks.
    Models,
    Ollama,
    Tokens,
    /// Of the devices, and of who may do what with them.
    Devices,
    Server,
}

/// An error in OpenAI's words.
pub(super) fn openai() -> Value {
    let fields = json!({ "message": "text", "type": "text", "param": "text?", "code": "text?" });
    json!({ "error": fields })
}

/// What an error may be in the words of an API. What is said before a request is read is so in OpenAI's.
pub(super) fn errors(tag: Tag, status: u16) -> Vec<Value> {
    let openai = openai();
    let anthropic = json!({ "type": "=error", "error": { "type": "text", "message": "text" } });
    let own = match tag {
        Tag::OpenAi | Tag::Tokens | Tag::Devices | Tag::Server => return vec![openai],
        Tag::Models => return vec![openai, anthropic],
        Tag::Anthropic => anthropic,
        Tag::Ollama => json!({ "error": "text" }),
    };
    if status == 503 { vec![own, openai] } else { vec![own] }
}
