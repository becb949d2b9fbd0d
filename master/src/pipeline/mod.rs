//! Steps through the stages: master → stage 0 → … → last stage → master, several in flight.
//!
//! [`open`] loads the stages and wires them; [`Pipeline::submit`] sends a step. A stage that cannot
//! reach the next one hands its output to the master, which relays it.
mod announce;
mod blocks;
mod local;
mod open;
mod paces;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cake_checkpoint::LayerRange;
use cake_proto::{Assembler, Incoming, Step, StepItem, WireFormat, wire};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tonic::Streaming;
use tracing::debug;

use crate::sizing::LOCAL;

pub use blocks::{Blocks, Full};
pub use local::LocalStage;
pub use open::{Error as OpenError, Opening, StageSpec, open};
pub use paces::Paces;

/// A step that takes longer has failed: slower than any device worth using.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Frames that may wait for a slow link.
const FRAMES_QUEUED: usize = 32;

/// A running pipeline. Dropping it ends its streams.
#[derive(Debug)]
pub struct Pipeline {
    shared: Arc<Shared>,
    local: Option<LocalStage>,
    stages: Vec<StageInfo>,
    in_flight: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

/// One stage, for reports.
#[derive(Clone, Debug, Serialize)]
pub struct StageInfo {
    /// Device name.
    pub worker: String,
    /// Its layers.
    pub layers: LayerRange,
    /// False if the master carries this stage's output to the next one.
    pub direct: bool,
}

/// What the last stage answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// `[wanted rows, hidden_size]`, row-major.
    pub hidden: Vec<f32>,
    /// Rows of `hidden`.
    pub rows: usize,
    /// Microseconds each stage computed.
    pub stage_us: Vec<u32>,
    /// Microseconds each stage had nothing to compute before it.
    pub idle_us: Vec<u32>,
}

/// Why a step has no answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A stage says that it could not do it.
    #[error("worker {worker:?} could not do its layers: {message}")]
    Stage {
        /// The worker.
        worker: String,
        /// What it said.
        message: String,
    },
    /// The connection to a worker is gone.
    #[error("lost worker {worker:?}: {reason}")]
    Lost {
        /// The worker.
        worker: String,
        /// How its stream ended.
        reason: String,
    },
    /// Nothing came back.
    #[error("no answer from the pipeline for {} s", STEP_TIMEOUT.as_secs())]
    Silent,
    /// The pipeline has ended.
    #[error("the pipeline is closed")]
    Closed,
}

#[derive(Debug)]
struct Shared {
    generation: u64,
    hidden_size: usize,
    wire: WireFormat,
    next_step: AtomicU64,
    /// The last step that left, for those who tell stages about it.
    sent: watch::Sender<u64>,
    pending: Mutex<Pending>,
    /// Why it is broken, for those who watch it.
    broken: watch::Sender<Option<Error>>,
    remotes: Vec<Remote>,
}

#[derive(Debug, Default)]
struct Pending {
    steps: HashMap<u64, Waiting>,
    /// Microseconds each stage computed on the step that was answered last.
    stage_us: Vec<u32>,
    /// How long the stages take for generated rows.
    paces: Paces,
    broken: Option<Error>,
}

#[derive(Debug)]
struct Waiting {
    rows: usize, // As many as were wanted.
    answer: oneshot::Sender<Result<Answer, Error>>,
    _permit: OwnedSemaphorePermit,
}

/// The stream to one worker.
#[derive(Debug)]
struct Remote {
    name: String,
    frames: mpsc::Sender<wire::StepFrame>,
}

/// A step on its way.
#[derive(Debug)]
pub struct Ticket {
    answer: oneshot::Receiver<Result<Answer, Error>>,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`Error`] if a stage failed or nothing came back in time, which breaks the pipeline.
    pub async fn answer(self) -> Result<Answer, Error> {
        match tokio::time::timeout(STEP_TIMEOUT, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(self.shared.silent()),
        }
    }
}

impl Pipeline {
    /// The stages in order.
    pub fn stages(&self) -> &[StageInfo] {
        &self.stages
    }

    /// Messages between machines in one step: one to each worker, one back, and one more wherever the
    /// master relays. None if no worker takes part.
    pub fn hops(&self) -> usize {
        let relayed = self.stages.iter().filter(|stage| !stage.direct).count();
        match self.shared.remotes.len() {
            0 => 0,
            workers => workers + 1 + relayed,
        }
    }

    /// Tells when it breaks, and why.
    pub fn watch(&self) -> watch::Receiver<Option<Error>> {
        self.shared.broken.subscribe()
    }

    /// How long its stages take for generated rows; to be asked also when it has ended.
    pub fn paces(&self) -> Paces {
        self.shared.lock().paces.clone()
    }

    /// Sends a step; waits while as many are in flight as the pipeline takes.
    ///
    /// * `hidden`: `[rows, hidden_size]`, rows in the order of `items`.
    /// * `wanted`: rows wanted back, ascending.
    ///
    /// # Errors
    /// [`Error`] if the pipeline is broken or closed.
    pub async fn submit(
        &self,
        items: Vec<StepItem>,
        hidden: Vec<f32>,
        wanted: Vec<u32>,
    ) -> Result<Ticket, Error> {
        let place = tokio::time::timeout(STEP_TIMEOUT, self.in_flight.clone().acquire_owned());
        let permit = place.await.map_err(|_| self.shared.silent())?.map_err(|_| Error::Closed)?;
        let rows = items.iter().map(|item| item.rows).sum();
        let number = self.shared.next_step.fetch_add(1, Ordering::Relaxed);
        let generation = self.shared.generation;
        let (stage_us, idle_us) = (Vec::new(), Vec::new());
        let step =
            Step { step: number, generation, items, rows, wanted, stage_us, idle_us, hidden };
        let (answer, ticket) = oneshot::channel();
        {
            let mut pending = self.shared.lock();
            if let Some(error) = &pending.broken {
                return Err(error.clone());
            }
            let rows = step.wanted.len();
            pending.paces.left(number, &step.items);
            pending.steps.insert(number, Waiting { rows, answer, _permit: permit });
        }
        match &self.local {
            Some(local) => {
                let closed = |error| {
                    self.shared.break_down(Error::Closed); // Its thread is gone.
                    error
                };
                local.submit(step).await.map_err(closed)?;
            }
            None => self.shared.forward(0, step).await,
        }
        self.shared.sent.send_replace(number);
        Ok(Ticket { answer: ticket, shared: self.shared.clone() })
    }

    /// Ends it, and waits until what the master itself had in memory for it is free. Call from a thread
    /// that may block.
    pub fn close(mut self) {
        self.shared.break_down(Error::Closed); // So that the stage's thread waits for no worker.
        if let Some(local) = self.local.take() {
            local.close();
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Whoever still waits for a step need not wait for its time to be over.
        self.shared.break_down(Error::Closed);
    }
}

impl Shared {
    /// Sends a step to the remote stage at `index`.
    async fn forward(&self, index: usize, step: Step) {
        let Some(remote) = self.remotes.get(index) else {
            let worker = self.remotes.last().map_or("master", |last| &last.name).to_owned();
            let message = "it asked for a relay past the last stage".to_owned();
            return self.complete(step.step, Err(Error::Stage { worker, message }));
        };
        for frame in step.into_frames(false, self.wire) {
            if remote.frames.send(frame).await.is_err() {
                let reason = "its stream is closed".to_owned();
                return self.break_down(Error::Lost { worker: remote.name.clone(), reason });
            }
        }
    }

    /// What the local stage computed goes on to the first remote one, or is the answer; nowhere once the
    /// pipeline is broken, as a worker that is silent may take nothing any more.
    async fn after_local(&self, result: Result<Step, (u64, String)>) {
        match result {
            Err((step, message)) => {
                let worker = LOCAL.to_owned();
                self.complete(step, Err(Error::Stage { worker, message }));
            }
            Ok(step) if self.remotes.is_empty() => self.answer(step.into_answer()),
            Ok(step) => {
                let mut broken = self.broken.subscribe();
                tokio::select! {
                    () = self.forward(0, step) => {}
                    _ = broken.wait_for(Option::is_some) => {}
                }
            }
        }
    }

    /// Reads what the remote stage at `index` says until its stream ends.
    async fn listen(&self, index: usize, mut stream: Streaming<wire::StepFrame>, max_rows: usize) {
        let worker = || self.remotes[index].name.clone();
        let mut assembler = Assembler::new(self.hidden_size, max_rows);
        let reason = loop {
            let frame = match stream.message().await {
                Ok(Some(frame)) => frame,
                Ok(None) => break "it closed the stream".to_owned(),
                Err(status) => break status.message().to_owned(),
            };
            match assembler.push(frame) {
                Ok(None) => {}
                Ok(Some(Incoming::Step(step))) => self.answer(step),
                Ok(Some(Incoming::Relay(step))) => self.forward(index + 1, step).await,
                // Its numbers or its weights are not what they were: it computes nothing more until it is loaded anew.
                Ok(Some(Incoming::Failure { message, kind, .. })) if kind.is_loss_of_stage() => {
                    break message;
                }
                // Of every step at once: its stream to the next stage broke, so that one is lost.
                Ok(Some(Incoming::Failure { step: 0, worker, message, .. })) => {
                    self.break_down(match self.remotes.get(index + 1) {
                        Some(next) => {
                            let reason = format!("{worker:?} says: {message}");
                            Error::Lost { worker: next.name.clone(), reason }
                        }
                        None => Error::Stage { worker, message },
                    });
                }
                Ok(Some(Incoming::Failure { step, worker, message, .. })) => {
                    self.complete(step, Err(Error::Stage { worker, message }));
                }
                Err(error) => break error.to_string(),
            }
        };
        self.break_down(Error::Lost { worker: worker(), reason });
    }

    fn answer(&self, step: Step) {
        let Step { rows, hidden, stage_us, idle_us, .. } = step;
        self.complete(step.step, Ok(Answer { hidden, rows, stage_us, idle_us }));
    }

    fn complete(&self, step: u64, result: Result<Answer, Error>) {
        let mut pending = self.lock();
        let waiting = pending.steps.remove(&step);
        if let (Some(waiting), Ok(answer)) = (&waiting, &result)
            && answer.rows == waiting.rows
        {
            pending.stage_us.clone_from(&answer.stage_us);
            pending.paces.back(step, &answer.stage_us);
        }
        drop(pending);
        match waiting {
            // A dropped ticket means that nobody waits any more.
            Some(waiting) => drop(waiting.answer.send(result.and_then(|answer| {
                if answer.rows == waiting.rows {
                    return Ok(answer);
                }
                let worker = self.remotes.last().map_or(LOCAL, |last| &last.name).to_owned();
                let message =
                    format!("it answered {} rows, expected {}", answer.rows, waiting.rows);
                Err(Error::Stage { worker, message })
            }))),
            None => debug!(step, "an answer to a step that is not pending"),
        }
    }

    /// Whether somebody waits for `step`: nobody does once the pipeline is broken.
    fn is_pending(&self, step: u64) -> bool {
        self.lock().steps.contains_key(&step)
    }

    /// Whether `step` is on its way and no other is.
    fn is_alone(&self, step: u64) -> bool {
        let pending = self.lock();
        pending.steps.len() == 1 && pending.steps.contains_key(&step)
    }

    /// Nothing came back for too long.
    fn silent(&self) -> Error {
        self.break_down(Error::Silent);
        Error::Silent
    }

    /// Ends every step in flight with `error`, and every later one.
    fn break_down(&self, error: Error) {
        let mut pending = self.lock();
        for (_, waiting) in pending.steps.drain() {
            waiting.answer.send(Err(error.clone())).ok();
        }
        let first = pending.broken.get_or_insert(error).clone();
        self.broken.send_replace(Some(first));
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Critical sections cannot leave the map half changed: a poisoned lock is still whole.
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
