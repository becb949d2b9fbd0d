//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::respond::{Sending, Shape, Whole, respond};
use super::wire::{ChatLogprob, ChatLogprobs, ChatMessage, ChatRequest, Content, TokenLogprob};
use super::{Body, Served, params};
use crate::scheduler::Token;
use crate::text::Message;

pub(super) async fn create(
    State(served): State<Arc<Served>>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let ChatRequest { messages, logprobs, top_logprobs, tools, response_format, common } = request;
    if tools.is_some_and(|tools| !tools.is_empty()) {
        return Err(ApiError::Unsupported { param: "tools" });
    }
    if response_format.is_some_and(|format| format.kind != "text") {
        return Err(ApiError::Unsupported { param: "response_format" });
    }
    let logprobs = logprobs.unwrap_or(false);
    if top_logprobs.is_some() && !logprobs {
        let expected = "logprobs to be true beside it";
        return Err(ApiError::parameter("top_logprobs", "given", expected));
    }
    if messages.is_empty() {
        return Err(ApiError::parameter("messages", "empty", "at least one"));
    }
    let messages: Vec<Message> = messages.into_iter().map(message).collect::<Result<_, _>>()?;
    // Long texts take a while: others go on meanwhile.
    let prompt = tokio::task::block_in_place(|| served.text.encode_chat(&messages))?;
    let prompts = vec![prompt];
    let sending = Sending::new(&common, &prompts);
    let plan = params::plan(&served, &prompts, common, top_logprobs.unwrap_or(0), None)?;
    respond(served, plan, sending, Chat { logprobs }).await
}

/// A message as templates take it: its parts joined.
fn message(message: ChatMessage) -> Result<Message, ApiError> {
    let content = match message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let text = parts.into_iter().map(|part| match (part.kind.as_str(), part.text) {
                ("text", Some(text)) => Ok(text),
                (kind, _) => {
                    let found = format!("a part of type {kind:?}");
                    Err(ApiError::parameter("messages", found, "parts of type \"text\""))
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
    Ok(Message { role, content })
}

struct Chat {
    logprobs: bool,
}

impl Chat {
    fn logprobs(&self, served: &Served, tokens: &[Token]) -> Option<ChatLogprobs> {
        let entry = |id, logprob| {
            let token = served.token_text(id);
            TokenLogprob { bytes: token.clone().into_bytes(), token, logprob }
        };
        let content = tokens.iter().map(|token| ChatLogprob {
            token: entry(token.id, token.logprob),
            top_logprobs: token.top.iter().map(|(id, logprob)| entry(*id, *logprob)).collect(),
        });
        self.logprobs.then(|| ChatLogprobs { content: content.collect() })
    }
}

impl Shape for Chat {
    const OBJECTS: (&'static str, &'static str) = ("chat.completion", "chat.completion.chunk");
    const PREFIX: &'static str = "chatcmpl";

    fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        Some(json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null }))
    }

    fn piece(&mut self, served: &Served, index: usize, text: &str, tokens: &[Token]) -> Value {
        let logprobs = self.logprobs(served, tokens);
        let delta = json!({ "content": text });
        json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null })
    }

    fn end(&self, index: usize, reason: &str) -> Value {
        json!({ "index": index, "delta": {}, "logprobs": null, "finish_reason": reason })
    }

    fn whole(&mut self, served: &Served, index: usize, answer: &Whole) -> Value {
        let message = json!({ "role": "assistant", "content": answer.text, "refusal": null });
        let logprobs = self.logprobs(served, &answer.tokens);
        let reason = answer.reason;
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": reason })
    }
}
