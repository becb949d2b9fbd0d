//! Responses on their way out: whole, or as the events of a stream.

use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::ask::{Kept, Record, decimal};
use super::output::{Kind, Output};
use super::store::Stored;
use crate::api::answer::{Piece, What, Why, begin};
use crate::api::chat::{Prepared, logprobs};
use crate::api::error::ApiError;
use crate::api::owner::Owner;
use crate::api::respond::{KEEP_ALIVE, Tally, unix_seconds};
use crate::api::tools::ToolCall;
use crate::api::wire::Usage;
use crate::api::{Served, Server};
use crate::reply::{Reply, Shown};
use crate::scheduler::Token;
use crate::text::Text;

/// Who asks, and whom.
pub(super) struct Asker {
    pub(super) server: Arc<Server>,
    pub(super) served: Arc<Served>,
    pub(super) owner: Owner,
}

/// Begins the answer and sends it: in one piece, or as it comes. `room` is what the record takes until then.
pub(super) async fn respond(
    asker: Asker,
    prepared: Prepared,
    record: Record,
    room: Option<OwnedSemaphorePermit>,
) -> Result<Response, ApiError> {
    let Prepared { plan, sending, reply, most_calls, logprobs } = prepared;
    let tally = Tally::new(&sending, plan.requests.len());
    let mut received = begin(&asker.served, plan)?;
    let Asker { server, served, owner } = asker;
    let mut answer = Answer {
        id: format!("resp_{}", cake_identity::random_token()),
        begun: unix_seconds(),
        repeated: told(record.repeated, &served),
        kept: record.kept,
        server,
        owner,
        words: served.text.clone(),
        tally,
        reply,
        most_calls,
        logprobs,
        held: Vec::new(),
        thought_tokens: 0,
        output: Output::default(),
        whole: None,
        _room: room,
    };
    drop(served); // While what was computed is sent, the model may go.
    if sending.stream {
        let outgoing = Outgoing { received, answer, next: 0, over: false };
        let alive = KeepAlive::new().interval(KEEP_ALIVE);
        return Ok(Sse::new(events(outgoing)).keep_alive(alive).into_response());
    }
    loop {
        let piece = received.recv().await.ok_or(ApiError::Closed)?;
        answer.take(piece)?;
        if let Some(whole) = answer.whole {
            return Ok(Json(whole).into_response());
        }
    }
}

/// What a response repeats, and what is done where the request did not say.
fn told(mut repeated: Value, served: &Served) -> Value {
    let defaults = [("temperature", served.defaults.temperature), ("top_p", served.defaults.top_p)];
    for (name, default) in defaults {
        if repeated[name].is_null() {
            repeated[name] = json!(decimal(default));
        }
    }
    repeated["model"] = json!(served.name);
    repeated
}

/// Items without how likely their words were, which is of no use to what goes on from them.
fn without_logprobs(mut items: Value) -> Value {
    let items_of = items.as_array_mut().into_iter().flatten();
    let contents = items_of.filter_map(|item| item.get_mut("content")?.as_array_mut());
    let parts = contents.flatten().filter_map(Value::as_object_mut);
    parts.for_each(|part| drop(part.remove("logprobs")));
    items
}

/// A response that is being made.
struct Answer {
    id: String,
    /// Seconds since 1970.
    begun: u64,
    /// What it says of its request.
    repeated: Value,
    kept: Option<Kept>,
    server: Arc<Server>,
    owner: Owner,
    words: Arc<Text>,
    tally: Tally,
    reply: Reply,
    /// Most calls; more are let go.
    most_calls: usize,
    logprobs: bool,
    /// Tokens whose text is held back.
    held: Vec<Token>,
    /// Tokens of what the model thought.
    thought_tokens: usize,
    output: Output,
    /// The response once it has ended.
    whole: Option<Value>,
    /// What was sent, as far as it is here until then.
    _room: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// The events for a piece. After the last one `whole` is there, and stored if it is to be.
    ///
    /// # Errors
    /// If the answer broke off.
    fn take(&mut self, piece: Piece) -> Result<Vec<Value>, ApiError> {
        self.tally.count(&piece);
        match piece.what {
            What::Begun { .. } => Ok(vec![self.event("in_progress")]),
            What::Scored(_) => Ok(Vec::new()), // Nobody asks for it here.
            What::Text { text, tokens } => {
                let shown = self.reply.push(&text);
                self.held.extend(tokens);
                Ok(self.say(&shown))
            }
            What::Ended { why, .. } => Ok(self.end(why)),
            What::Failed(error) => Err(error),
        }
    }

    /// Tells more thought and text. Tokens whose text is held back are told with it.
    fn say(&mut self, Shown { thought, text }: &Shown) -> Vec<Value> {
        let mut events = Vec::new();
        if !thought.is_empty() {
            events.extend(self.output.say(Kind::Thought, thought, Vec::new()));
            if text.is_empty() {
                self.thought_tokens += take(&mut self.held).len();
            }
        }
        if !text.is_empty() {
            let tokens = take(&mut self.held);
            let logprobs = match self.logprobs {
                true => logprobs(&self.words, &tokens),
                false => Vec::new(),
            };
            events.extend(self.output.say(Kind::Text, text, logprobs));
        }
        events
    }

    fn end(&mut self, why: Why) -> Vec<Value> {
        let (rest, calls) = self.reply.clone().finish();
        let mut events = self.say(&rest);
        // What was cut off is cut off at its end: that of the last call, or of what was said.
        let status = if why.details.is_some() { "incomplete" } else { "completed" };
        let calls: Vec<ToolCall> =
            calls.into_iter().take(self.most_calls).map(ToolCall::from).collect();
        match calls.len().checked_sub(1) {
            None => {
                if self.output.is_silent() {
                    events.extend(self.output.say(Kind::Text, "", Vec::new()));
                }
                events.extend(self.output.close(status));
            }
            Some(last) => {
                for (index, call) in calls.into_iter().enumerate() {
                    let status = if index == last { status } else { "completed" };
                    events.extend(self.output.call(call, status));
                }
            }
        }
        let mut whole = self.object(status);
        whole["usage"] = counted(self.tally.usage, self.thought_tokens);
        match why.details {
            // OpenAI has one word for both.
            Some(details) => {
                whole["incomplete_details"] =
                    json!({ "reason": "max_output_tokens", "details": details });
            }
            None => whole["completed_at"] = json!(unix_seconds()),
        }
        self.keep(&whole);
        events.push(json!({ "type": format!("response.{status}"), "response": whole }));
        self.whole = Some(whole);
        events
    }

    /// Stores the response, so that the next request can go on from it.
    fn keep(&mut self, whole: &Value) {
        let Some(Kept { before, mut input }) = self.kept.take() else { return };
        let output = without_logprobs(whole["output"].clone());
        let (mut output, mut response) = (output.to_string(), whole.to_string());
        // What is counted is what there is.
        [&mut input, &mut output, &mut response].into_iter().for_each(String::shrink_to_fit);
        let stored = Stored { before, input, output, response: response.into() };
        self.server.responses.put(self.owner, self.id.clone(), stored);
    }

    /// The response as it is now.
    fn object(&self, status: &str) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.begun,
            "completed_at": null,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "output": self.output.items,
            "usage": null,
        });
        for (name, value) in self.repeated.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        object
    }

    /// An event of a response that goes on.
    fn event(&self, kind: &str) -> Value {
        json!({ "type": format!("response.{kind}"), "response": self.object("in_progress") })
    }

    /// The last event of a response that broke off.
    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        let mut events = self.output.close("incomplete");
        let mut object = self.object("failed");
        let message = error.of_responses()["error"]["message"].take();
        object["error"] = json!({ "code": "server_error", "message": message });
        events.push(json!({ "type": "response.failed", "response": object }));
        events
    }
}

/// Tokens in the words of this API.
fn counted(usage: Usage, thought: usize) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": thought },
        "total_tokens": usage.total_tokens,
    })
}

/// The events of a stream: the last one is that the response has ended, or how it broke off.
fn events(outgoing: Outgoing) -> impl Stream<Item = Result<Event, Infallible>> {
    let batches = stream::unfold(outgoing, |mut outgoing| async move {
        let events = outgoing.next().await?;
        Some((stream::iter(events.into_iter().map(Ok)), outgoing))
    });
    batches.flatten()
}

struct Outgoing {
    received: mpsc::UnboundedReceiver<Piece>,
    answer: Answer,
    /// The number of the next event.
    next: u64,
    over: bool,
}

impl Outgoing {
    /// The events for the next piece; nothing after the last one.
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.over {
            return None;
        }
        let events = match self.next {
            // Before anything is computed: whoever waits knows for what.
            0 => vec![self.answer.event("created")],
            _ => {
                let piece = self.received.recv().await.ok_or(ApiError::Closed);
                let taken = piece.and_then(|piece| self.answer.take(piece));
                taken.unwrap_or_else(|error| self.broken(&error))
            }
        };
        self.over |= self.answer.whole.is_some();
        Some(events.into_iter().map(|value| self.numbered(value)).collect())
    }

    fn broken(&mut self, error: &ApiError) -> Vec<Value> {
        self.over = true;
        self.answer.failed(error)
    }

    /// An event of the name that its type is, with its number.
    fn numbered(&mut self, mut value: Value) -> Event {
        value["sequence_number"] = json!(self.next);
        self.next += 1;
        let name = value["type"].as_str().unwrap_or_default().to_owned();
        Event::default().event(name).data(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_on_from_has_no_log_probabilities() {
        let text = json!({ "type": "output_text", "text": "Yes" });
        let mut told = text.clone();
        told["logprobs"] = json!([{ "token": "Yes", "logprob": -0.5 }]);
        let items =
            |part| json!([{ "type": "function_call" }, { "type": "message", "content": [part] }]);
        assert_eq!(without_logprobs(items(told)), items(text));
    }
}
