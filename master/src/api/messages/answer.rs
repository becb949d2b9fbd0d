//! Answers as Anthropic's API gives them: blocks of thought, text and calls, whole or as they come.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::Served;
use crate::api::answer::{Piece, What, Why, begin};
use crate::api::chat::Prepared;
use crate::api::error::ApiError;
use crate::api::respond::{KEEP_ALIVE, Tally, collect};
use crate::api::tools::told;
use crate::api::wire::Usage;
use crate::reply::{Reply, Shown};

/// Begins the answer and sends it: in one piece, or as it comes.
pub(super) async fn respond(served: Arc<Served>, prepared: Prepared) -> Result<Response, ApiError> {
    let Prepared { plan, sending, mut reply, most_calls, .. } = prepared;
    let mut tally = Tally::new(&sending, plan.requests.len());
    let received = begin(&served, plan)?;
    let model = served.name.clone();
    drop(served); // While what was computed is sent, the model may go.
    let id = format!("msg_{}", cake_identity::random_token());
    if sending.stream {
        let blocks = Blocks::default();
        let outgoing =
            Outgoing { model, received, id, tally, reply, most_calls, blocks, over: false };
        let ping = Event::default().event("ping").data(json!({ "type": "ping" }).to_string());
        let alive = KeepAlive::new().interval(KEEP_ALIVE).event(ping);
        return Ok(Sse::new(events(outgoing)).keep_alive(alive).into_response());
    }
    let mut wholes = collect(received, 1, &mut tally).await?;
    let whole = wholes.pop().ok_or(ApiError::Closed)?;
    let shown = reply.push(&whole.text);
    let (rest, calls) = reply.finish();
    let (text, calls) = told(calls, most_calls);
    let (thought, text) = (shown.thought + &rest.thought, shown.text + &rest.text + &text);
    let mut content = Vec::new();
    if !thought.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": thought, "signature": "" }));
    }
    if !text.is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    let mut message = message(&id, &model, tally.usage);
    (message["stop_reason"], message["stop_sequence"]) =
        ended(whole.why, whole.stop, !calls.is_empty());
    content.extend(calls.into_iter().map(|(name, input)| tool_use(name, input)));
    message["content"] = Value::Array(content);
    Ok(Json(message).into_response())
}

/// A message without content that has not ended yet.
fn message(id: &str, model: &str, usage: Usage) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": counted(usage),
    })
}

/// Tokens, of which those that were read before are counted apart.
fn counted(usage: Usage) -> Value {
    let cached = usage.prompt_tokens_details.cached_tokens;
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    })
}

/// Why an answer ended, in Anthropic's words, and the stop string that it ended with, where that is why. What was cut off
/// was cut off, whatever it had called before.
fn ended(why: Why, stop: Option<String>, has_calls: bool) -> (Value, Value) {
    let reason = match (why.details, &stop) {
        (Some("context"), _) => "model_context_window_exceeded",
        (Some(_), _) => "max_tokens",
        (None, _) if has_calls => "tool_use",
        (None, Some(_)) => return (json!("stop_sequence"), json!(stop)),
        (None, None) => "end_turn",
    };
    (json!(reason), Value::Null)
}

fn tool_use(name: String, input: Value) -> Value {
    let id = format!("toolu_{}", cake_identity::random_token());
    json!({ "type": "tool_use", "id": id, "name": name, "input": input })
}

/// The events of a stream: it ends with `message_stop`, or with an error if it broke off.
fn events(outgoing: Outgoing) -> impl Stream<Item = Result<Event, Infallible>> {
    let batches = stream::unfold(outgoing, |mut outgoing| async move {
        let events = outgoing.next().await?;
        Some((stream::iter(events.into_iter().map(|value| Ok(event(&value)))), outgoing))
    });
    batches.flatten()
}

/// An event of the name that its type is.
fn event(value: &Value) -> Event {
    let name = value["type"].as_str().unwrap_or_default();
    Event::default().event(name).data(value.to_string())
}

struct Outgoing {
    model: String,
    received: mpsc::UnboundedReceiver<Piece>,
    id: String,
    tally: Tally,
    reply: Reply,
    most_calls: usize,
    blocks: Blocks,
    over: bool,
}

impl Outgoing {
    /// What the next piece says; nothing after the last one.
    async fn next(&mut self) -> Option<Vec<Value>> {
        if self.over {
            return None;
        }
        let Some(piece) = self.received.recv().await else {
            return Some(self.broken(&ApiError::Closed));
        };
        self.tally.count(&piece);
        Some(match piece.what {
            What::Begun { .. } => {
                let message = message(&self.id, &self.model, self.tally.usage);
                vec![json!({ "type": "message_start", "message": message })]
            }
            What::Scored(_) => Vec::new(), // Nobody asks for it here.
            What::Text { text, .. } => {
                let shown = self.reply.push(&text);
                self.blocks.say(&shown)
            }
            What::Ended { why, stop, .. } => {
                self.over = true;
                let (rest, calls) = self.reply.clone().finish();
                let (text, calls) = told(calls, self.most_calls);
                let rest = Shown { text: rest.text + &text, ..rest };
                let mut values = self.blocks.say(&rest);
                values.extend(self.blocks.close());
                let (reason, stop) = ended(why, stop, !calls.is_empty());
                for (name, input) in calls {
                    values.extend(self.blocks.call(name, &input));
                }
                let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
                let usage = counted(self.tally.usage);
                values.push(json!({ "type": "message_delta", "delta": delta, "usage": usage }));
                values.push(json!({ "type": "message_stop" }));
                values
            }
            What::Failed(error) => self.broken(&error),
        })
    }

    fn broken(&mut self, error: &ApiError) -> Vec<Value> {
        self.over = true;
        vec![error.of_messages()]
    }
}

/// The blocks of a stream, which follow each other.
#[derive(Debug, Default)]
struct Blocks {
    /// How many have begun.
    begun: usize,
    /// The kind of the one that has not ended.
    open: Option<&'static str>,
}

impl Blocks {
    /// What is said of more thought and text.
    fn say(&mut self, Shown { thought, text }: &Shown) -> Vec<Value> {
        let mut values = Vec::new();
        if !thought.is_empty() {
            let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
            values.extend(self.within("thinking", &block));
            values.push(self.delta(&json!({ "type": "thinking_delta", "thinking": thought })));
        }
        if !text.is_empty() {
            values.extend(self.within("text", &json!({ "type": "text", "text": "" })));
            values.push(self.delta(&json!({ "type": "text_delta", "text": text })));
        }
        values
    }

    /// A call, which is a block by itself.
    fn call(&mut self, name: String, input: &Value) -> Vec<Value> {
        let input = input.to_string();
        let mut values = self.within("tool_use", &tool_use(name, json!({})));
        values.push(self.delta(&json!({ "type": "input_json_delta", "partial_json": input })));
        values.extend(self.close());
        values
    }

    /// Has a block of this kind be open.
    fn within(&mut self, kind: &'static str, block: &Value) -> Vec<Value> {
        if self.open == Some(kind) {
            return Vec::new();
        }
        let mut values: Vec<Value> = self.close().into_iter().collect();
        let index = self.begun;
        values
            .push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        (self.begun, self.open) = (index + 1, Some(kind));
        values
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.begun - 1, "delta": delta })
    }

    fn close(&mut self) -> Option<Value> {
        let end = |_| json!({ "type": "content_block_stop", "index": self.begun - 1 });
        self.open.take().map(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(values: &[Value]) -> Vec<(&str, Option<u64>)> {
        values.iter().map(|it| (it["type"].as_str().unwrap(), it["index"].as_u64())).collect()
    }

    #[test]
    fn blocks_follow_each_other_and_each_ends() {
        let mut blocks = Blocks::default();
        let shown =
            |thought: &str, text: &str| Shown { thought: thought.into(), text: text.into() };
        let first = blocks.say(&shown("Hm", ""));
        assert_eq!(
            kinds(&first),
            [("content_block_start", Some(0)), ("content_block_delta", Some(0))]
        );
        assert!(blocks.say(&Shown::default()).is_empty());
        let both = blocks.say(&shown(".", "Yes"));
        let expected = [
            ("content_block_delta", Some(0)),
            ("content_block_stop", Some(0)),
            ("content_block_start", Some(1)),
            ("content_block_delta", Some(1)),
        ];
        assert_eq!(kinds(&both), expected);
        assert_eq!(
            kinds(&blocks.close().into_iter().collect::<Vec<_>>()),
            [("content_block_stop", Some(1))]
        );
        assert_eq!(blocks.close(), None);
        for index in [2, 3] {
            let values = blocks.call("f".into(), &json!({ "a": 1 }));
            let expected = ["content_block_start", "content_block_delta", "content_block_stop"];
            assert_eq!(kinds(&values), expected.map(|kind| (kind, Some(index))));
            assert_eq!(values[0]["content_block"]["input"], json!({}));
            assert_eq!(values[1]["delta"]["partial_json"], r#"{"a":1}"#);
        }
    }

    #[test]
    fn every_end_has_its_word() {
        let ended = |details, stop: Option<&str>, has_calls| {
            ended(Why { reason: "", details }, stop.map(str::to_owned), has_calls)
        };
        let only = |reason: &str| (json!(reason), Value::Null);
        assert_eq!(ended(Some("context"), None, false), only("model_context_window_exceeded"));
        assert_eq!(ended(Some("max_tokens"), None, false), only("max_tokens"));
        assert_eq!(ended(None, Some("a"), false), (json!("stop_sequence"), json!("a")));
        assert_eq!(ended(None, None, false), only("end_turn"));
        assert_eq!(ended(None, Some("a"), true), only("tool_use"));
        assert_eq!(ended(Some("max_tokens"), None, true), only("max_tokens"));
    }
}
