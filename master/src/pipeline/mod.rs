//! Steps through the stages: master → stage 0 → … → last stage → master, several in flight.
//!
//! [`open`] loads the stages and wires them; [`Pipeline::submit`] sends a step. A stage that cannot
//! reach the next one hands its output to the master, which relays it. What comes back is checked in
//! `hear`; what does not is missed by `lookout`, by the time that steps take (`pace`), and found by what
//! the stages say of themselves (`judge`).
mod announce;
mod error;
mod hear;
mod judge;
mod local;
mod lookout;
mod missed;
mod open;
mod pace;
mod paces;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cake_checkpoint::LayerRange;
use cake_proto::{Step, StepItem, WireFormat, wire};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use judge::Carried;
use missed::Missed;
use pace::{Pace, STEP_TIMEOUT};

pub use error::Error;
pub use local::LocalStage;
pub use open::{Error as OpenError, Opening, StageSpec, open};
pub use paces::Paces;

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
    /// `[wanted rows, width]`, row-major: as rows are after the last layer.
    pub hidden: Vec<f32>,
    /// Rows of `hidden`.
    pub rows: usize,
    /// Microseconds each stage computed.
    pub stage_us: Vec<u32>,
    /// Microseconds each stage had nothing to compute before it.
    pub idle_us: Vec<u32>,
}

#[derive(Debug)]
struct Shared {
    generation: u64,
    /// Numbers of the widest row.
    row_width: usize,
    wire: WireFormat,
    next_step: AtomicU64,
    /// The last step that left, for those who tell stages about it.
    sent: watch::Sender<u64>,
    /// The last step that is on its way to a remote stage: those after it are the master's own still.
    left: AtomicU64,
    /// Changes when something is found that only the stages can explain.
    doubt: watch::Sender<()>,
    pending: Mutex<Pending>,
    /// Why it is broken, for those who watch it.
    broken: watch::Sender<Option<Error>>,
    remotes: Vec<Remote>,
    /// For each remote stage, whether what it makes goes to the next one through the master.
    relayed: Vec<bool>,
}

#[derive(Debug, Default)]
struct Pending {
    steps: BTreeMap<u64, Waiting>,
    /// When a step was last answered.
    answered: Option<Instant>,
    /// How long steps take.
    pace: Pace,
    /// Steps of which a stage said why it could not do them.
    failed: u64,
    /// The remote stage that could not do the last steps that came to an end, and how many in a row.
    failing: Option<(usize, u32)>,
    /// What the master carried from a remote stage to the next one, by its place.
    carried: BTreeMap<usize, Carried>,
    /// A step was answered before one that left earlier.
    overtaken: bool,
    /// Microseconds each stage computed on the step that was answered last.
    stage_us: Vec<u32>,
    /// How long the stages take for generated rows.
    paces: Paces,
    broken: Option<Error>,
}

#[derive(Debug)]
struct Waiting {
    rows: usize,      // As many as were wanted.
    step_rows: usize, // As many as left.
    /// What left beside the numbers, if the master carries steps between stages.
    asked: Option<(Vec<StepItem>, Vec<u32>)>,
    since: Instant,
    answer: oneshot::Sender<Result<Answer, Error>>,
    _permit: OwnedSemaphorePermit,
}

/// The stream to one worker.
#[derive(Debug)]
struct Remote {
    name: String,
    frames: mpsc::Sender<wire::StepFrame>,
    /// Numbers of a row that it sends.
    row_width: usize,
}

/// Whether a step of a pipeline is late: it comes back, or the pipeline breaks.
#[derive(Debug)]
pub struct Lateness(Weak<Shared>);

impl Lateness {
    /// Whether one is now.
    pub fn is_late(&self) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.is_late())
    }
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

    /// Tells whether a step is late, for as long as it lives.
    pub fn lateness(&self) -> Lateness {
        Lateness(Arc::downgrade(&self.shared))
    }

    /// How long its stages take for generated rows; to be asked also when it has ended.
    pub fn paces(&self) -> Paces {
        self.shared.lock().paces.clone()
    }

    /// Sends a step; waits while as many are in flight as the pipeline takes.
    ///
    /// * `hidden`: `[rows, width]`, as rows are before the first layer, in the order of `items`.
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
            let (step_rows, since) = (step.rows, Instant::now());
            let carries = self.shared.relayed.contains(&true);
            let asked = carries.then(|| (step.items.clone(), step.wanted.clone()));
            let waiting = Waiting { rows, step_rows, asked, since, answer, _permit: permit };
            pending.steps.insert(number, waiting);
        }
        // Before it leaves, which may take for ever: who looks out for it has to know of it.
        self.shared.sent.send_replace(number);
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
    /// Sends a step to the remote stage at `index`; nowhere once the pipeline is broken, as a worker that is
    /// silent may take nothing any more.
    async fn forward(&self, index: usize, step: Step) {
        let Some(remote) = self.remotes.get(index) else { return };
        if index == 0 {
            self.left(step.step);
        }
        let mut broken = self.broken.subscribe();
        for frame in step.into_frames(false, self.wire) {
            let sent = tokio::select! {
                sent = remote.frames.send(frame) => sent.is_ok(),
                _ = broken.wait_for(Option::is_some) => return,
            };
            if !sent {
                let reason = "its stream is closed".to_owned();
                return self.break_down(Error::Lost { worker: remote.name.clone(), reason });
            }
        }
    }

    /// `step` is on its way to the first remote stage.
    fn left(&self, step: u64) {
        self.left.fetch_max(step, Ordering::Relaxed);
    }

    /// What is to be looked for now.
    fn missed(&self) -> Missed {
        let pending = self.lock();
        let Some((&number, waiting)) = pending.steps.first_key_value() else {
            return match pending.broken {
                Some(_) => Missed::Over,
                None => Missed::Nothing,
            };
        };
        if pending.overtaken {
            return Missed::Overtaken;
        }
        // Steps come back one after the other: each has its time from when the one before it did.
        let since = waiting.since.max(pending.answered.unwrap_or(waiting.since));
        let rows = waiting.step_rows;
        let due = since + pending.pace.patience(rows);
        match due <= Instant::now() {
            // Nobody else can say anything of what the master itself is at.
            true if self.left.load(Ordering::Relaxed) < number => {
                Missed::Not(Instant::now() + pending.pace.patience(rows))
            }
            true => Missed::Step { number, rows, since },
            false => Missed::Not(due),
        }
    }

    /// Whether the step that is to come back next takes longer than such steps do, too short a time for anybody to be
    /// asked about.
    fn is_late(&self) -> bool {
        let pending = self.lock();
        pending.steps.first_key_value().is_some_and(|(_, waiting)| {
            let since = waiting.since.max(pending.answered.unwrap_or(waiting.since));
            pending.pace.is_late(waiting.step_rows, since.elapsed())
        })
    }

    /// Steps of which it is known why they left some stage never.
    fn failed(&self) -> u64 {
        self.lock().failed
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
        for waiting in std::mem::take(&mut pending.steps).into_values() {
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
