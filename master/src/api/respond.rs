//! Answers on their way out: as one JSON object, or as a stream of server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Served;
use super::answer::{Piece, Plan, What, Why, begin};
use super::error::ApiError;
use super::params::Wishes;
use super::wire::{PromptTokensDetails, Usage};
use crate::scheduler::Token;
use crate::text::Text;

/// How often a stream that has nothing to say shows that it is alive.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What differs between the kinds of answers.
pub(super) trait Shape: Send + Sync + 'static {
    /// What `object` is in a whole answer, and in a piece of a stream.
    const OBJECTS: (&'static str, &'static str);
    /// What ids begin with.
    const PREFIX: &'static str;

    /// What is said of an answer before its first text, if anything.
    fn opening(&self, index: usize) -> Option<Value>;
    /// The choice of a stream for its prompt, all tokens of which but the first are scored, if that is said.
    fn scored(&mut self, _: &Text, _index: usize, _tokens: &[Token]) -> Option<Value> {
        None
    }
    /// The choice of a stream for more text, unless it is held back.
    fn piece(&mut self, words: &Text, index: usize, text: &str, tokens: &[Token]) -> Option<Value>;
    /// The choices that end an answer of a stream.
    fn end(&mut self, words: &Text, index: usize, reason: &str) -> Vec<Value>;
    /// The choice for a whole answer.
    fn whole(&mut self, words: &Text, index: usize, answer: &Whole) -> Value;
}

/// An answer that is complete.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// The prompt's tokens but the first, if they were scored.
    pub(super) scored: Vec<Token>,
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    pub(super) why: Why,
    /// The stop string that ended it, if one did.
    pub(super) stop: Option<String>,
}

/// How the answers to one request go out.
pub(super) struct Sending {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Tokens of all prompts.
    pub(super) prompt_tokens: usize,
    pub(super) prompts: usize,
}

impl Sending {
    pub(super) fn new(wishes: &Wishes, prompts: &[Vec<u32>]) -> Self {
        Self {
            stream: wishes.stream,
            include_usage: wishes.include_usage,
            prompt_tokens: prompts.iter().map(Vec::len).sum(),
            prompts: prompts.len(),
        }
    }
}

/// Begins `plan` and answers in the given shape.
pub(super) async fn respond<S: Shape>(
    served: Arc<Served>,
    plan: Plan,
    sending: Sending,
    shape: S,
) -> Result<Response, ApiError> {
    let answers = plan.requests.len();
    let received = begin(&served, plan)?;
    let (object, piece) = S::OBJECTS;
    let frame = Frame::new(S::PREFIX, if sending.stream { piece } else { object }, &served);
    let mut tally = Tally::new(&sending, answers);
    // While what was computed is sent, the model may go.
    let words = served.text.clone();
    drop(served);
    if sending.stream {
        let include_usage = sending.include_usage;
        let outgoing =
            Outgoing { words, received, frame, tally, shape, include_usage, over: false };
        let alive = KeepAlive::new().interval(KEEP_ALIVE);
        return Ok(Sse::new(events(outgoing)).keep_alive(alive).into_response());
    }
    let wholes = collect(received, answers, &mut tally).await?;
    let mut shape = shape;
    let choices = wholes.iter().enumerate();
    let choices = choices
        .map(|(index, whole)| detailed(shape.whole(&words, index, whole), whole.why))
        .collect();
    Ok(Json(frame.with(choices, Some(tally.usage))).into_response())
}

/// What every object of an answer begins with.
struct Frame {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Frame {
    fn new(prefix: &str, object: &'static str, served: &Served) -> Self {
        Self {
            id: format!("{prefix}-{}", cake_identity::random_token()),
            object,
            created: unix_seconds(),
            model: served.name.clone(),
        }
    }

    fn with(&self, choices: Vec<Value>, usage: Option<Usage>) -> Value {
        let mut all = json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            all["usage"] = json!(usage);
        }
        all
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Counts tokens and answers that have ended.
pub(super) struct Tally {
    pub(super) usage: Usage,
    answers_each: usize,
    open: usize,
}

impl Tally {
    pub(super) fn new(sending: &Sending, answers: usize) -> Self {
        let prompt_tokens = sending.prompt_tokens;
        Self {
            usage: Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() },
            answers_each: (answers / sending.prompts.max(1)).max(1),
            open: answers,
        }
    }

    pub(super) fn count(&mut self, piece: &Piece) {
        match &piece.what {
            // Of several answers to one prompt, the first one.
            What::Begun { cached_tokens } if piece.index.is_multiple_of(self.answers_each) => {
                let PromptTokensDetails { cached_tokens: all } =
                    &mut self.usage.prompt_tokens_details;
                *all += cached_tokens;
            }
            What::Ended { completion_tokens, .. } => {
                self.usage.completion_tokens += completion_tokens;
                self.usage.total_tokens += completion_tokens;
                self.open -= 1;
            }
            What::Begun { .. } | What::Scored(_) | What::Text { .. } | What::Failed(_) => {}
        }
    }
}

/// Waits for all answers.
pub(super) async fn collect(
    mut received: mpsc::UnboundedReceiver<Piece>,
    answers: usize,
    tally: &mut Tally,
) -> Result<Vec<Whole>, ApiError> {
    let mut wholes: Vec<Whole> = (0..answers).map(|_| Whole::default()).collect();
    while tally.open > 0 {
        let piece = received.recv().await.ok_or(ApiError::Closed)?;
        tally.count(&piece);
        let whole = &mut wholes[piece.index];
        match piece.what {
            What::Begun { .. } => {}
            What::Scored(tokens) => whole.scored = tokens,
            What::Text { text, tokens } => {
                whole.text.push_str(&text);
                whole.tokens.extend(tokens);
            }
            What::Ended { why, stop, .. } => (whole.why, whole.stop) = (why, stop),
            What::Failed(error) => return Err(error),
        }
    }
    Ok(wholes)
}

/// The events of a stream. It ends with `[DONE]`, after an error object if it broke off.
fn events<S: Shape>(outgoing: Outgoing<S>) -> impl Stream<Item = Result<Event, Infallible>> {
    let batches = futures_util::stream::unfold(outgoing, |mut outgoing| async move {
        let events = outgoing.next().await?;
        Some((futures_util::stream::iter(events.into_iter().map(Ok)), outgoing))
    });
    futures_util::StreamExt::flatten(batches)
}

struct Outgoing<S> {
    words: Arc<Text>,
    received: mpsc::UnboundedReceiver<Piece>,
    frame: Frame,
    tally: Tally,
    shape: S,
    include_usage: bool,
    over: bool,
}

impl<S: Shape> Outgoing<S> {
    /// The events for the next piece; nothing after the last one.
    async fn next(&mut self) -> Option<Vec<Event>> {
        if self.over {
            return None;
        }
        if self.tally.open == 0 {
            self.over = true;
            let usage = self.include_usage.then(|| self.frame.with(vec![], Some(self.tally.usage)));
            let usage = usage.map(|usage| event(&usage));
            return Some(usage.into_iter().chain([done()]).collect());
        }
        let Some(piece) = self.received.recv().await else {
            self.over = true;
            return Some(vec![event(&ApiError::Closed.json()), done()]);
        };
        self.tally.count(&piece);
        let index = piece.index;
        let choices = match piece.what {
            What::Begun { .. } => self.shape.opening(index).into_iter().collect(),
            What::Scored(tokens) => {
                self.shape.scored(&self.words, index, &tokens).into_iter().collect()
            }
            What::Text { text, tokens } if text.is_empty() && tokens.is_empty() => Vec::new(),
            What::Text { text, tokens } => {
                self.shape.piece(&self.words, index, &text, &tokens).into_iter().collect()
            }
            What::Ended { why, .. } => {
                let ends = self.shape.end(&self.words, index, why.reason).into_iter();
                ends.map(|choice| detailed(choice, why)).collect()
            }
            What::Failed(error) => {
                self.over = true;
                return Some(vec![event(&error.json()), done()]);
            }
        };
        let events = choices.into_iter().map(|choice| event(&self.frame.with(vec![choice], None)));
        Some(events.collect())
    }
}

/// A choice with what its `finish_reason`, if it has one, leaves open.
fn detailed(mut choice: Value, why: Why) -> Value {
    if let Some(details) = why.details
        && choice["finish_reason"].is_string()
    {
        choice["finish_details"] = json!({ "type": details });
    }
    choice
}

fn event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// The last event of every stream: nothing more comes.
fn done() -> Event {
    Event::default().data("[DONE]")
}
