//! Many sequences over one pipeline: continuous batching.
//!
//! Start at [`Scheduler::submit`]. One task (`actor`) moves messages; all that it decides a pure state machine decides
//! (`core`), which owns everything that changes: who waits, who runs, which KV blocks are whose (`cache`), how far each is,
//! what is to come of a step (`want`). Commands that have one sequence drive the same core themselves (`single`).
//! Sequences join and leave between two steps. A step carries one token of each of its generating sequences and some
//! rows of prompts; so many steps are in flight that every stage has one, and one is with the
//! master's head. The task is watched: its end is an error that everybody hears ([`Scheduler::ended`]).
//!
//! Invariants:
//! - A sequence that was admitted never waits for blocks, nor for a slot for its state: all that it may need are promised
//!   to it. The loss of a stage is the one exception: what sequences shared they hold for themselves then, until everything
//!   is computed again, and whoever finds no room waits, before all that were never admitted.
//! - Those that wait are admitted in the order in which they came.
//! - Steps pass every stage in the order of their submission, so that blocks can be given to another
//!   sequence as soon as no later step reads them for the first. The same holds for slots.

mod actor;
mod cache;
mod core;
mod generation;
mod request;
mod sampler;
mod shared;
mod single;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod want;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use tracing::{field, info_span};

use crate::chunk::Chunk;
use crate::generate::Ends;
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;
use crate::request_id::RequestId;
use generation::{End, how, supervise};
use shared::{Command, Resumed, Shared};

pub use cache::{Scope, Usage};
pub use generation::Generation;
pub use request::{Error, Event, Finish, Goal, Limits, Load, OnLoss, Refusal, Request};
pub use sampler::{Choice, Token};
pub use single::Generator;

/// Runs sequences. Clones are handles to the same one; it ends when the last of them is dropped and what
/// runs has ended.
#[derive(Clone, Debug)]
pub struct Scheduler {
    commands: mpsc::UnboundedSender<Command>,
    shared: Arc<Shared>,
    /// How its task ended, once it has.
    end: End,
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

    /// Waits for the end of the task that owns all sequences, which only a mistake of ours brings about while there are
    /// handles to it; the waiting is none. Whoever waits for an answer has been told by then or is told at once; later
    /// requests are, too.
    pub fn ended(&self) -> impl Future<Output = Error> + use<> {
        how(self.end.clone())
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
