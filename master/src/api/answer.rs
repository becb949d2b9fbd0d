//! One request's answers as they come: from the scheduler's tokens to pieces of text.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Served;
use super::error::ApiError;
use crate::generate::Finish;
use crate::running::{self, Ticket};
use crate::scheduler::{Event, Generation, Request, Token};
use crate::text::{Detokenizer, Marks, StopStrings};

/// What is to be generated for one request.
pub(super) struct Plan {
    /// One for each answer.
    pub(super) requests: Vec<Request>,
    /// Text that ends an answer.
    pub(super) stop: Vec<String>,
    /// Special tokens that are text all the same, since they mark what it is.
    pub(super) marks: Marks,
    /// What the answers' text goes on from, if they are not texts of their own.
    pub(super) after: Vec<u32>,
}

/// A part of one of the answers.
#[derive(Debug)]
pub(super) struct Piece {
    /// Which answer.
    pub(super) index: usize,
    pub(super) what: What,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Why {
    /// OpenAI's word for it.
    pub(super) reason: &'static str,
    /// What of several things that word stands for here.
    pub(super) details: Option<&'static str>,
}

impl Why {
    const STOP: Self = Self { reason: "stop", details: None };
}

impl From<Finish> for Why {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop => Self::STOP,
            Finish::Length => Self { reason: "length", details: Some("max_tokens") },
            Finish::Context => Self { reason: "length", details: Some("context") },
        }
    }
}

#[derive(Debug)]
pub(super) enum What {
    /// The prompt is being read.
    Begun { cached_tokens: usize },
    /// All tokens of the prompt but the first, scored; before any text, if they were asked for.
    Scored(Vec<Token>),
    /// More text, often none, and the tokens that came since the last one.
    Text { text: String, tokens: Vec<Token> },
    /// The end, and the stop string that was it, if one was.
    Ended { why: Why, stop: Option<String>, completion_tokens: usize },
    /// The end: it broke off.
    Failed(ApiError),
}

/// Begins all answers of `plan`; their pieces come out of the receiver, those of each answer in order.
/// Dropping it cancels them.
///
/// # Errors
/// If the scheduler does not take one of them; then none is begun.
pub(super) fn begin(
    served: &Arc<Served>,
    plan: Plan,
) -> Result<mpsc::UnboundedReceiver<Piece>, ApiError> {
    let Plan { requests, stop, marks, after } = plan;
    let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let ticket = running::enter(&served.name, requests.len(), prompt_tokens);
    let generations = served.scheduler.submit(requests)?;
    // What a slow client has not read is bounded by its own max_tokens; were writing to wait for it, its
    // sequence would run past a stop string.
    let (pieces, received) = mpsc::unbounded_channel();
    let reading = Reading { stop, marks, after: after.into(), ticket };
    for (index, generation) in generations.into_iter().enumerate() {
        let (served, pieces, reading) = (served.clone(), pieces.clone(), reading.clone());
        tokio::spawn(async move {
            let cancelled = pieces.clone();
            tokio::select! {
                () = write(&served, generation, reading, index, pieces) => {}
                () = cancelled.closed() => {} // Nobody reads: the generation is dropped.
            }
        });
    }
    Ok(received)
}

/// How the text of an answer is read from its tokens: what [`Plan`] says.
#[derive(Clone)]
struct Reading {
    stop: Vec<String>,
    marks: Marks,
    after: Arc<[u32]>,
    /// Its place on the list of what runs.
    ticket: Option<Arc<Ticket>>,
}

/// Turns what is generated into pieces until it ends or nobody takes them.
async fn write(
    served: &Served,
    mut generation: Generation,
    Reading { stop, marks, after, ticket }: Reading,
    index: usize,
    pieces: mpsc::UnboundedSender<Piece>,
) {
    let mut detokenizer = Detokenizer::after(&served.text, &after);
    let mut stops = StopStrings::new(stop);
    let mut completion_tokens = 0;
    loop {
        let (what, over) = match generation.next().await {
            Some(Event::Begun { reused_tokens }) => {
                ticket.iter().for_each(|ticket| ticket.begun(reused_tokens));
                (What::Begun { cached_tokens: reused_tokens }, false)
            }
            Some(Event::Scored(tokens)) => (What::Scored(tokens), false),
            Some(Event::Token(token)) => {
                completion_tokens += 1;
                ticket.iter().for_each(|ticket| ticket.token());
                // An id that no tokenizer entry has is no text, and no reason to end either.
                let text = match marks.get(&token.id) {
                    Some(mark) => detokenizer.finish().unwrap_or_default() + mark,
                    None => detokenizer.push(token.id).unwrap_or_default(),
                };
                let scan = stops.push(&text);
                let text = What::Text { text: scan.emit, tokens: vec![token] };
                if scan.stopped {
                    if pieces.send(Piece { index, what: text }).is_err() {
                        return;
                    }
                    let stop = stops.found().map(str::to_owned);
                    (What::Ended { why: Why::STOP, stop, completion_tokens }, true)
                } else {
                    (text, false)
                }
            }
            Some(Event::Ended(finish)) => {
                let rest = detokenizer.finish().unwrap_or_default();
                let scan = stops.push(&rest);
                let mut text = scan.emit;
                if !scan.stopped {
                    text.push_str(&stops.finish());
                }
                if !text.is_empty() {
                    let text = What::Text { text, tokens: Vec::new() };
                    if pieces.send(Piece { index, what: text }).is_err() {
                        return;
                    }
                }
                let why = if scan.stopped { Why::STOP } else { finish.into() };
                let stop = stops.found().map(str::to_owned);
                (What::Ended { why, stop, completion_tokens }, true)
            }
            Some(Event::Failed(error)) => {
                ticket.iter().for_each(|ticket| ticket.failed(&error));
                (What::Failed(error.into()), true)
            }
            // No answer ends with an embedding.
            Some(Event::Embedding(_)) | None => (What::Failed(ApiError::Closed), true),
        };
        if pieces.send(Piece { index, what }).is_err() || over {
            return;
        }
    }
}
