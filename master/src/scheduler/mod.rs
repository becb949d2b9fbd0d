//! Many sequences over one pipeline: continuous batching.
//!
//! Start at [`Scheduler::submit`]. One task (`actor`) moves messages; all that it decides a pure state machine decides
//! (`core`), which owns everything that changes: who waits, who runs (`admit`), which KV blocks are whose (`cache`), how
//! far each is (`sequence`), what is to come of a step (`want`). Commands that have one sequence drive the same core
//! themselves (`single`).
//! Sequences join and leave between two steps. A step carries one token of each of its generating sequences and some
//! rows of prompts (`batch`, `compose`); so many steps are in flight that every stage has one, and one is with the
//! master's head. The task is watched: its end is an error that everybody hears ([`Scheduler::ended`]).
//!
//! Invariants:
//! - A sequence that was admitted never waits for blocks: all that it may need are promised to it. The loss of a stage
//!   is the one exception: what sequences shared they hold for themselves then, until everything is computed again, and
//!   whoever finds no room waits, before all that were never admitted.
//! - Those that wait are admitted in the order in which they came.
//! - Steps pass every stage in the order of their submission, so that blocks can be given to another
//!   sequence as soon as no later step reads them for the first.

mod actor;
mod admit;
mod batch;
mod cache;
mod compose;
mod core;
mod ease;
mod generation;
mod sampler;
mod sequence;
mod single;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod want;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cake_engine::blocks_for;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Span, field, info_span};

use crate::chunk::Chunk;
use crate::generate::{Ends, Finish};
use crate::grammar;
use crate::metrics::Metrics;
use crate::pipeline::{self, Pipeline};
use crate::request_id::RequestId;
use crate::sizing::Promise;
use generation::{End, how, supervise};

pub use cache::{Scope, Usage};
pub use generation::Generation;
pub use sampler::{Choice, Token};
pub use single::Generator;

/// What the pipeline was planned for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Sequences of that length that there are blocks for.
    pub parallel: usize,
    /// Most sequences at once, however short they are.
    pub most_running: usize,
    /// KV blocks of every stage.
    pub kv_blocks: usize,
    /// How a prompt is cut into steps.
    pub chunk: Chunk,
    /// Most prompt rows in one step, of all prompts.
    pub prompt_rows: usize,
    /// Most sequences that wait beside those that run, and beside as many as `parallel` says.
    pub queue: usize,
}

/// A sequence to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// Most new tokens.
    pub max_tokens: usize,
    /// Ids that end it.
    pub stop_ids: Arc<HashSet<u32>>,
    /// What it is computed for.
    pub goal: Goal,
    /// Whose prefixes it shares.
    pub scope: Scope,
}

/// What a sequence is computed for.
#[derive(Clone, Debug)]
pub enum Goal {
    /// An answer, whose tokens are chosen in this way.
    Answer(Box<Choice>),
    /// One vector for the prompt. No token is chosen.
    Embedding,
}

/// What happens to a sequence, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// It has left the queue.
    Begun {
        /// Prompt tokens that need not be computed.
        reused_tokens: usize,
    },
    /// One more token.
    Token(Token),
    /// The mean of the final hidden states of all rows of the prompt, `[hidden_size]`: the last event.
    Embedding(Vec<f32>),
    /// The last event.
    Ended(Finish),
    /// The last event: a step failed, or a lost stage was not replaced in time.
    Failed(Error),
}

/// Why a sequence did not come to its end.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A stage failed, or is gone.
    #[error(transparent)]
    Pipeline(#[from] pipeline::Error),
    /// A thread of the master's did.
    #[error("choosing a token ended unexpectedly")]
    Panicked,
    /// A grammar did.
    #[error(transparent)]
    Grammar(#[from] grammar::Error),
    /// Embedding or head failed.
    #[error("the master could not compute its own part: {0}")]
    Engine(Arc<cake_engine::Error>),
    /// A stage was lost, and nothing took its place in time.
    #[error("the cluster is not whole again yet: {0}")]
    Unrecovered(String),
    /// The task that owns all sequences has ended, which it never does while somebody may submit.
    #[error("the scheduler, which every answer comes from, ended unexpectedly: {0}")]
    Ended(Arc<str>),
    /// Stage after stage was lost with it.
    #[error("{losses} times a stage was lost before its next token came: perhaps because of it")]
    LostAgain {
        /// How often.
        losses: usize,
    },
}

impl Error {
    /// Whether the same steps may succeed over another pipeline.
    fn is_loss(&self) -> bool {
        matches!(self, Self::Pipeline(error) if error.is_loss())
    }
}

/// What becomes of sequences when a stage is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// They fail.
    Fail,
    /// They wait for [`Scheduler::resume`] or [`Scheduler::give_up`].
    Wait,
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nothing to start from.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Longer than what was planned for.
    #[error(
        "the prompt has {tokens} tokens, and with one to come that is more than the context of {context}"
    )]
    PromptTooLong {
        /// Its tokens.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// It could not run even alone.
    #[error("prompt and answer of {tokens} tokens need {needed} KV blocks, there are {total}")]
    NeverFits {
        /// Tokens of both.
        tokens: usize,
        /// Blocks they need.
        needed: usize,
        /// Blocks there are.
        total: usize,
    },
    /// An id that the model does not have.
    #[error("token id {id} is not in the vocabulary of {vocab_size}")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids there are.
        vocab_size: usize,
    },
    /// As many wait as may.
    #[error("{waiting} answers wait already: try again later")]
    Busy {
        /// How many.
        waiting: usize,
    },
    /// More at once than may ever wait.
    #[error("{answers} answers in one request, at most {most} may run and wait")]
    TooMany {
        /// Asked for.
        answers: usize,
        /// As many as run and wait at most.
        most: usize,
    },
}

/// Runs sequences. Clones are handles to the same one; it ends when the last of them is dropped and what
/// runs has ended.
#[derive(Clone, Debug)]
pub struct Scheduler {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    /// How its task ended, once it has.
    end: End,
}

#[derive(Debug)]
struct Shared {
    limits: Limits,
    vocab_size: usize,
    next_sequence: AtomicU64,
    /// Sequences that wait or run, each with a place.
    taken: AtomicUsize,
    load: Mutex<Load>,
    metrics: Arc<Metrics>,
}

/// How busy a scheduler is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Requests that wait.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// Steps on their way.
    pub steps: usize,
    /// KV blocks of every stage.
    pub kv_blocks: Usage,
}

#[derive(Debug)]
enum Command {
    Begin {
        sequence: u64,
        request: Request,
        events: mpsc::UnboundedSender<Event>,
        since: Instant,
        span: Span,
    },
    Cancel {
        sequence: u64,
    },
    /// Whoever asks is told when the line's memory is free.
    Suspend(oneshot::Sender<()>),
    Resume(Box<Resumed>),
    GiveUp(String),
    /// The task panics, as it would at a mistake of ours.
    #[cfg(test)]
    Panic,
}

/// Stages that take the place of others.
#[derive(Debug)]
struct Resumed {
    pipeline: Pipeline,
    chunk: Chunk,
    prompt_rows: usize,
}

impl Scheduler {
    /// Begins to run sequences over `pipeline`, on the current runtime; what happens is counted in
    /// `metrics`.
    pub fn start(
        pipeline: Pipeline,
        ends: Ends,
        limits: Limits,
        on_loss: OnLoss,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            limits,
            vocab_size: ends.vocab_size(),
            next_sequence: AtomicU64::new(1),
            taken: AtomicUsize::new(0),
            load: Mutex::default(),
            metrics,
        });
        let (tell, end) = watch::channel(None);
        let task = tokio::spawn(actor::run(pipeline, ends, on_loss, shared.clone(), received));
        tokio::spawn(supervise(task, tell));
        Self { commands, shared, end }
    }

    /// Waits for the end of the task that owns all sequences, which only a mistake of ours brings about. Whoever waits
    /// for an answer has been told by then or is told at once; later requests are, too.
    pub async fn ended(&self) -> Error {
        how(self.end.clone()).await
    }

    /// Queues requests, all or none.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(&self, requests: Vec<Request>) -> Result<Vec<Generation>, Refusal> {
        let checked = requests
            .iter()
            .try_for_each(|request| self.shared.limits.check(request, self.shared.vocab_size));
        let taken = checked.and_then(|()| self.shared.take(requests.len()));
        taken
            .inspect_err(|_| requests.iter().for_each(|_| self.shared.metrics.ended("refused")))?;
        Ok(requests.into_iter().map(|request| self.begin(request)).collect())
    }

    /// Gives up the pipeline, and waits until what the master itself had in memory for it is free. Sequences
    /// wait for another one.
    pub async fn suspend(&self) {
        let (tell, told) = oneshot::channel();
        if self.commands.send(Command::Suspend(tell)).is_ok() {
            told.await.ok(); // Without a scheduler there is no pipeline either.
        }
    }

    /// Goes on over another pipeline, of as many KV blocks, whose stages hold nothing of any sequence yet:
    /// what was computed is computed again from its ids, and nothing is chosen again. False if the scheduler
    /// is gone.
    pub fn resume(&self, pipeline: Pipeline, chunk: Chunk, prompt_rows: usize) -> bool {
        let resumed = Box::new(Resumed { pipeline, chunk, prompt_rows });
        self.commands.send(Command::Resume(resumed)).is_ok()
    }

    /// Ends everything that waits for a lost stage, and says why. Later requests wait again.
    pub fn give_up(&self, why: String) {
        self.commands.send(Command::GiveUp(why)).ok();
    }

    fn begin(&self, request: Request) -> Generation {
        let sequence = self.shared.next_sequence.fetch_add(1, Ordering::Relaxed);
        // As many events as tokens: what nobody reads is bounded by the request itself.
        let (sender, events) = mpsc::unbounded_channel();
        let span = info_span!(
            "request",
            sequence,
            prompt_tokens = request.prompt.len(),
            request_id = RequestId::current().map(field::display),
            cached_tokens = field::Empty,
            generated_tokens = field::Empty,
            end = field::Empty,
        );
        let since = Instant::now();
        let begin = Command::Begin { sequence, request, events: sender, since, span };
        if self.commands.send(begin).is_err() {
            self.shared.give_back(1); // The generation says how the scheduler ended.
        }
        let (commands, end) = (self.commands.clone(), self.end.clone());
        Generation { sequence, events, commands, end, over: false }
    }

    /// What the pipeline was planned for.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Ids there are.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        *self.shared.load()
    }
}

impl Shared {
    /// Takes places for so many sequences, for all or for none.
    fn take(&self, count: usize) -> Result<(), Refusal> {
        let Limits { queue, parallel, .. } = self.limits;
        let most = queue.saturating_add(parallel);
        if count > most {
            return Err(Refusal::TooMany { answers: count, most });
        }
        // Short sequences run beyond what is promised, and take no place from those that wait.
        let running = self.load().running.max(parallel);
        let most = queue.saturating_add(running);
        let more = |taken: usize| (taken <= most - count).then_some(taken + count);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let busy = |taken: usize| Refusal::Busy { waiting: taken.saturating_sub(running) };
        taken.map(drop).map_err(busy)
    }

    fn give_back(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        // Written as a whole: a poisoned lock holds what was true before.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Limits {
    /// What was promised by a plan, with a queue for so many.
    pub fn of(promise: &Promise, chunk: Chunk, queue: usize) -> Self {
        Self {
            context: promise.context,
            parallel: promise.parallel,
            most_running: promise.most_sequences(),
            kv_blocks: promise.kv_blocks(),
            chunk,
            prompt_rows: promise.chunk,
            queue,
        }
    }

    /// Whether a request can be taken where there are so many ids.
    fn check(&self, request: &Request, vocab_size: usize) -> Result<(), Refusal> {
        let Limits { context, kv_blocks, .. } = *self;
        let prompt = &request.prompt;
        if prompt.is_empty() {
            return Err(Refusal::EmptyPrompt);
        }
        if prompt.len() >= context {
            return Err(Refusal::PromptTooLong { tokens: prompt.len(), context });
        }
        if let Some(&id) = prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Refusal::UnknownId { id, vocab_size });
        }
        let tokens = self.longest(request);
        let needed = blocks_for(tokens);
        match needed > kv_blocks {
            true => Err(Refusal::NeverFits { tokens, needed, total: kv_blocks }),
            false => Ok(()),
        }
    }

    /// Tokens that a sequence may grow to.
    fn longest(&self, request: &Request) -> usize {
        let more = match request.goal {
            Goal::Answer(_) => request.max_tokens,
            Goal::Embedding => 0,
        };
        request.prompt.len().saturating_add(more).min(self.context)
    }
}
