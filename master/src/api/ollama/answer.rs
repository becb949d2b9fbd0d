//! Answers as Ollama gives them: lines of JSON as they come, the last of them with counts and times, or all of it as one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::names::LINES;
use crate::api::Served;
use crate::api::answer::{Piece, What, Why, begin};
use crate::api::chat::{Prepared, logprobs};
use crate::api::error::ApiError;
use crate::api::respond::{KEEP_ALIVE, Tally};
use crate::api::telling::Telling;
use crate::api::tools::told;
use crate::api::wire::ChatLogprob;
use crate::reply::{Call, Shown};
use crate::scheduler::Token;
use crate::text::Text;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// What every line of an answer says.
pub(super) struct Manner {
    pub(super) kind: Kind,
    /// The model by the name that the client has for it.
    pub(super) model: String,
}

/// Begins the answer and sends it: as it comes, or in one piece.
pub(super) async fn respond(
    served: Arc<Served>,
    prepared: Prepared,
    manner: Manner,
    clock: Clock,
) -> Result<Response, ApiError> {
    let Prepared { plan, sending, reply, most_calls, logprobs } = prepared;
    let tally = Tally::new(&sending, plan.requests.len());
    let received = begin(&served, plan)?;
    let words = served.text.clone();
    drop(served); // While what was computed is sent, the model may go.
    let telling = Telling::new(reply, most_calls);
    let mut outgoing =
        Outgoing { words, received, telling, tally, clock, logprobs, end: None, over: false };
    if !sending.stream {
        let mut whole = Part::default();
        while let Some(part) = outgoing.next().await {
            whole.add(part?);
        }
        return Ok(Json(manner.line(whole)).into_response());
    }
    let lines = stream::unfold((outgoing, manner), |(mut outgoing, manner)| async move {
        let line = match outgoing.next().await? {
            Ok(part) => manner.line(part),
            Err(error) => error.of_ollama(),
        };
        Some((Ok::<_, Infallible>(Bytes::from(format!("{line}\n"))), (outgoing, manner)))
    });
    Ok(([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response())
}

impl Manner {
    /// What whoever asks nothing is told: what became of the model.
    pub(super) fn done(&self, reason: &'static str) -> Response {
        let end = End { reason, counts: None };
        Json(self.line(Part { end: Some(end), ..Part::default() })).into_response()
    }

    fn line(&self, part: Part) -> Value {
        let Part { thought, text, calls, logprobs, end } = part;
        let mut line = json!({
            "model": self.model,
            "created_at": humantime::format_rfc3339_micros(SystemTime::now()).to_string(),
            "done": end.is_some(),
        });
        let said = match self.kind {
            Kind::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                &mut line["message"]
            }
            Kind::Generate => {
                line["response"] = Value::String(text);
                &mut line
            }
        };
        if !thought.is_empty() {
            said["thinking"] = Value::String(thought);
        }
        if !calls.is_empty() {
            said["tool_calls"] = Value::Array(calls);
        }
        if !logprobs.is_empty() {
            line["logprobs"] = json!(logprobs);
        }
        if let Some(End { reason, counts }) = end {
            line["done_reason"] = json!(reason);
            for (name, count) in counts.into_iter().flatten() {
                line[name] = json!(count);
            }
        }
        line
    }
}

/// A part of an answer, or all of it.
#[derive(Debug, Default)]
struct Part {
    thought: String,
    text: String,
    calls: Vec<Value>,
    logprobs: Vec<ChatLogprob>,
    /// Of the last one.
    end: Option<End>,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.thought.is_empty()
            && self.text.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
    }

    fn add(&mut self, next: Part) {
        self.thought += &next.thought;
        self.text += &next.text;
        self.calls.extend(next.calls);
        self.logprobs.extend(next.logprobs);
        self.end = next.end;
    }
}

/// How an answer ended.
#[derive(Debug)]
struct End {
    reason: &'static str,
    /// Tokens, and nanoseconds.
    counts: Option<[(&'static str, u64); 6]>,
}

/// When things happened.
#[derive(Debug)]
pub(super) struct Clock {
    asked: Instant,
    /// When the prompt's turn came.
    begun: Option<Instant>,
    /// When the first token was there.
    first: Option<Instant>,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { asked: Instant::now(), begun: None, first: None }
    }

    /// Times in nanoseconds until `now`, when the last token is there: all of it, until the prompt's turn came, until the
    /// first token was there, and since then.
    fn nanoseconds(&self, now: Instant) -> [u64; 4] {
        let begun = self.begun.unwrap_or(now);
        let first = self.first.unwrap_or(now);
        let spans = [(self.asked, now), (self.asked, begun), (begun, first), (first, now)];
        spans.map(|(from, to)| nanoseconds(to.saturating_duration_since(from)))
    }

    /// Nanoseconds until now.
    pub(super) fn elapsed(&self) -> u64 {
        nanoseconds(self.asked.elapsed())
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

struct Outgoing {
    words: Arc<Text>,
    received: mpsc::UnboundedReceiver<Piece>,
    telling: Telling,
    tally: Tally,
    clock: Clock,
    logprobs: bool,
    /// What is still to be said once all else is.
    end: Option<End>,
    over: bool,
}

impl Outgoing {
    /// The next part; nothing after the last one. An empty one shows that nothing has come for a while.
    async fn next(&mut self) -> Option<Result<Part, ApiError>> {
        if let Some(end) = self.end.take() {
            self.over = true;
            return Some(Ok(Part { end: Some(end), ..Part::default() }));
        }
        while !self.over {
            let Ok(piece) = timeout(KEEP_ALIVE, self.received.recv()).await else {
                return Some(Ok(Part::default()));
            };
            let Some(piece) = piece else { return Some(Err(self.broken(ApiError::Closed))) };
            self.tally.count(&piece);
            match piece.what {
                What::Begun { .. } => self.clock.begun = Some(Instant::now()),
                What::Scored(_) => {} // Nobody asks for it here.
                What::Text { text, tokens } => {
                    if !tokens.is_empty() {
                        self.clock.first.get_or_insert_with(Instant::now);
                    }
                    if let Some((shown, tokens)) = self.telling.push(&text, &tokens) {
                        return Some(Ok(self.part(shown, &tokens, Vec::new())));
                    }
                }
                What::Ended { why, .. } => {
                    let end = self.ended(why);
                    let (rest, tokens, calls) = self.telling.clone().finish();
                    let mut part = self.part(rest, &tokens, calls);
                    // Calls come before the end: some clients look for none in the last line.
                    match part.is_empty() {
                        true => (self.over, part.end) = (true, Some(end)),
                        false => self.end = Some(end),
                    }
                    return Some(Ok(part));
                }
                What::Failed(error) => return Some(Err(self.broken(error))),
            }
        }
        None
    }

    fn part(&self, shown: Shown, tokens: &[Token], calls: Vec<Call>) -> Part {
        let (text, calls) = told(calls, usize::MAX);
        let calls = calls.into_iter().enumerate().map(|(index, (name, arguments))| {
            json!({
                "id": format!("call_{}", cake_identity::random_token()),
                "function": { "index": index, "name": name, "arguments": arguments },
            })
        });
        let logprobs = if self.logprobs { logprobs(&self.words, tokens) } else { Vec::new() };
        let calls = calls.collect();
        Part { thought: shown.thought, text: shown.text + &text, calls, logprobs, end: None }
    }

    /// Why it ended, and what it took.
    fn ended(&self, why: Why) -> End {
        let [total, load, prompt, answer] = self.clock.nanoseconds(Instant::now());
        let usage = self.tally.usage;
        let counts = [
            ("total_duration", total),
            ("load_duration", load),
            ("prompt_eval_count", usage.prompt_tokens as u64),
            ("prompt_eval_duration", prompt),
            ("eval_count", usage.completion_tokens as u64),
            ("eval_duration", answer),
        ];
        End { reason: why.reason, counts: Some(counts) }
    }

    fn broken(&mut self, error: ApiError) -> ApiError {
        self.over = true;
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_each_other_and_make_the_whole() {
        let clock = Clock::start();
        let at = |milliseconds| clock.asked + Duration::from_millis(milliseconds);
        let clock = Clock { begun: Some(at(5)), first: Some(at(25)), ..clock };
        let spans = clock.nanoseconds(at(125)).map(|span| span / 1_000_000);
        assert_eq!(spans, [125, 5, 20, 100]);
        // Without a single token all of it is the prompt's.
        let spans = Clock { first: None, ..clock }.nanoseconds(at(125));
        assert_eq!(spans.map(|span| span / 1_000_000), [125, 5, 120, 0]);
    }

    #[test]
    fn a_line_has_what_its_kind_has() {
        let manner = |kind| Manner { kind, model: "m:latest".to_owned() };
        let part = || Part { thought: "Hm".into(), text: "Yes".into(), ..Part::default() };
        let line = manner(Kind::Chat).line(part());
        let message = json!({ "role": "assistant", "content": "Yes", "thinking": "Hm" });
        assert_eq!((&line["message"], &line["done"]), (&message, &json!(false)));
        assert!(line.get("done_reason").is_none() && line.get("logprobs").is_none());
        let line = manner(Kind::Generate).line(part());
        assert_eq!((&line["response"], &line["thinking"]), (&json!("Yes"), &json!("Hm")));
        assert_eq!((&line["model"], line.get("message")), (&json!("m:latest"), None));
        let end = End { reason: "length", counts: None };
        let mut whole = part();
        whole.add(Part { text: ".".into(), calls: vec![json!({})], ..Part::default() });
        whole.add(Part { end: Some(end), ..Part::default() });
        let line = manner(Kind::Chat).line(whole);
        assert_eq!((&line["done"], &line["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!(line["message"]["content"], "Yes.");
        assert_eq!(line["message"]["tool_calls"], json!([{}]));
    }
}
