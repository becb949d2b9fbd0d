//! The loaded stage: a thread that computes, a bounded queue in front of it, a route behind it.
#[cfg(test)]
mod model;
mod queue;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Blob, Digest, LayerRange, Manifest};
use cake_engine::Stage;
use cake_proto::{Failure, Step, WireFormat, limits};
use cake_stage::{Account, Job, Ledger, StepEngine};
use tokio::sync::watch;
use tracing::{info, warn};

use self::queue::{StepQueue, Turns, step_queue};
use crate::NOTES;
use crate::progress::{Progress, Report};
use crate::routes::Routes;
use crate::store::OpenBlob;

/// What this worker computes for one lease at the moment. A handle: clones share one stage.
#[derive(Clone, Debug)]
pub struct Runtime {
    worker: String,
    account: Arc<Account<String>>,
    loaded: Arc<Mutex<Option<Loaded>>>,
    resting: Arc<Mutex<Vec<Resting>>>,
    computed_tokens: Arc<AtomicU64>,
}

/// What a stage that ended computed with: verified, and where it shall lie. Its file may be evicted.
pub type Resting = (Manifest, Blob);

/// A stage ready to take steps.
#[derive(Debug)]
struct Loaded {
    about: About,
    queue: StepQueue<Job>,
    routes: Routes,
    pipeline: Option<String>,
    progress: Arc<Progress>,
    ended: watch::Sender<()>, // Dropped with the stage: every stream that feeds it then ends.
    engine: std::thread::JoinHandle<Vec<OpenBlob>>,
}

/// What callers may know of the loaded stage.
#[derive(Clone, Debug)]
pub struct About {
    /// Generation of the plan.
    pub generation: u64,
    /// Its layers.
    pub layers: LayerRange,
    /// Numbers of a row that comes,
    pub row_width: usize,
    /// and of the wider one of it and of one that leaves.
    pub widest_row: usize,
    /// Most rows in a step.
    pub max_rows: usize,
    /// How it sends hidden states.
    pub wire: WireFormat,
}

impl About {
    /// How many frames may wait for its link before the stage itself waits.
    pub fn frames_queued(&self) -> usize {
        limits::frames_queued(self.max_rows.saturating_mul(self.widest_row).saturating_mul(4))
    }
}

/// One stage as the streams that feed it know it: it tells this stage from the next one, even if a
/// second master happens to use the same generation.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// What is loaded.
    pub about: About,
    /// How far it is.
    pub progress: Arc<Progress>,
    ended: watch::Receiver<()>,
}

impl Ticket {
    /// Completes when the stage is unloaded.
    pub async fn ended(&mut self) {
        self.ended.changed().await.ok(); // Nothing is ever sent: it ends with the sender.
    }
}

/// A step or route that does not fit what is loaded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// No stage.
    #[error("worker {worker:?} has no stage loaded")]
    NotLoaded {
        /// This worker.
        worker: String,
    },
    /// Made for another plan.
    #[error("worker {worker:?} runs plan generation {loaded}, the step is of {found}")]
    Generation {
        /// This worker.
        worker: String,
        /// Generation loaded.
        loaded: u64,
        /// Generation of the step.
        found: u64,
    },
    /// A stream of another pipeline.
    #[error("worker {worker:?} does not take steps from this pipeline")]
    Pipeline {
        /// This worker.
        worker: String,
    },
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Self::failed_precondition(error.to_string())
    }
}

impl Loaded {
    fn ticket(&self) -> Ticket {
        let (about, progress) = (self.about.clone(), self.progress.clone());
        Ticket { about, progress, ended: self.ended.subscribe() }
    }
}

impl Runtime {
    /// No stage yet; what one takes of memories goes into `ledger`, by [`cake_stage::memory_of`].
    pub fn new(worker: &str, ledger: Arc<Ledger<String>>) -> Self {
        Self {
            worker: worker.to_owned(),
            account: Arc::new(Account::new(ledger)),
            loaded: Arc::default(),
            resting: Arc::default(),
            computed_tokens: Arc::default(),
        }
    }

    /// Puts `stage` to work. What was loaded before must have been unloaded.
    ///
    /// `blobs`, which are verified, are what it computes with; they are spared from eviction meanwhile.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn install(&self, stage: Stage, about: About, blobs: Vec<OpenBlob>) -> std::io::Result<()> {
        let routes = Routes::new(&self.worker, about.wire, about.frames_queued());
        let (queue, turns) = step_queue(limits::STEPS_QUEUED);
        let (ended, end) = watch::channel(());
        let out = routes.clone();
        let handle = tokio::runtime::Handle::current();
        let layers = about.layers;
        let progress = Arc::new(Progress::default());
        let seen = progress.clone();
        let computed = self.computed_tokens.clone();
        let bytes = blobs.iter().map(|open| open.manifest.file_bytes).sum();
        let engine = std::thread::Builder::new().name("cake-stage".into()).spawn(move || {
            let _runtime = handle.enter(); // `Routes::fail` spawns a task.
            let send = |step: Step| {
                let number = step.step;
                seen.computed();
                match handle.block_on(send(&out, step, end.clone())) {
                    true => seen.sent(number),
                    false => seen.failed(),
                }
            };
            let fail = |number, failure| {
                seen.failed();
                out.fail(number, failure);
            };
            let mut engine = StepEngine::new(stage);
            let run = |job: Job| {
                seen.begun(job.number());
                let step = engine.run(job).map_err(|error| error.failure(layers))?;
                computed.fetch_add(step.rows as u64, Ordering::Relaxed);
                Ok(step)
            };
            compute(turns, run, send, fail);
            // What may not be what was verified does not rest: whoever wants it again verifies it again.
            if engine.is_lost() { Vec::new() } else { blobs }
        })?;
        let weights = format_bytes(bytes);
        info!(target: NOTES, %layers, weights, generation = about.generation, "loaded");
        let loaded = Loaded { about, queue, routes, pipeline: None, progress, ended, engine };
        if let Some(replaced) = self.lock().replace(loaded) {
            replaced.routes.close();
        }
        Ok(())
    }

    /// Tokens that went through a stage here, in the process's life; those of prompts, and of steps done again, too.
    pub fn computed_tokens(&self) -> u64 {
        self.computed_tokens.load(Ordering::Relaxed)
    }

    /// Lets the stage compute nothing more than the step it is at.
    pub fn stop(&self) {
        if let Some(loaded) = &*self.lock() {
            loaded.queue.stop();
        }
    }

    /// What its stage takes of this worker's memory, or what rests of it.
    pub fn account(&self) -> &Account<String> {
        &self.account
    }

    /// Drops the stage and waits until its memory is back, but for its blobs: those rest until they are taken or let
    /// go. Changes nothing where no stage is loaded. Call from a thread that may block.
    pub fn unload(&self) {
        let blobs = self.end();
        let mut resting = self.resting();
        if !blobs.is_empty() {
            *resting = blobs;
        }
        if resting.is_empty() {
            self.account.give_back();
        }
    }

    /// Lets go of what rests, for another stage that needs the memory. Returns whether there was any.
    pub fn let_rest_go(&self) -> bool {
        let mut resting = self.resting();
        let any = !resting.is_empty();
        if any {
            resting.clear();
            self.account.give_back();
        }
        any
    }

    /// Of the blobs that rest, lets go of those whose name is not `held`: as long as one is mapped, its removed file
    /// takes room on the disk. Returns whether there were any.
    pub fn let_go_unless(&self, held: impl Fn(&Digest) -> bool) -> bool {
        let mut resting = self.resting();
        let before = resting.len();
        resting.retain(|(manifest, _)| held(&manifest.name()));
        let any = resting.len() < before;
        if any && resting.is_empty() {
            self.account.give_back();
        }
        any
    }

    /// Drops the stage, and whatever rests. As [`Runtime::unload`].
    pub fn clear(&self) {
        drop(self.take());
        self.account.give_back();
    }

    /// Drops the stage; its blobs, or those that rest. As [`Runtime::unload`].
    pub fn take(&self) -> Vec<Resting> {
        let mut blobs = self.end();
        blobs.append(&mut self.resting());
        blobs
    }

    fn end(&self) -> Vec<Resting> {
        let Some(loaded) = self.lock().take() else { return Vec::new() };
        loaded.queue.stop();
        loaded.routes.close();
        drop(loaded.ended);
        loaded.queue.end();
        let blobs = loaded.engine.join().unwrap_or_else(|_| {
            warn!("the stage's thread had panicked");
            Vec::new()
        });
        info!(layers = %loaded.about.layers, "stage unloaded");
        blobs.into_iter().map(|open| (open.manifest, open.blob)).collect()
    }

    /// The loaded stage, for a stream that will feed it.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub fn ticket(&self) -> Result<Ticket, Error> {
        self.lock().as_ref().map(Loaded::ticket).ok_or_else(|| self.not_loaded())
    }

    /// The way out of the stage of `generation`; `pipeline` is what the previous stage must show.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] or [`Error::Generation`].
    pub fn routes(&self, generation: u64, pipeline: Option<&str>) -> Result<Routes, Error> {
        let mut guard = self.lock();
        let loaded = guard.as_mut().ok_or_else(|| self.not_loaded())?;
        self.check_generation(&loaded.about, generation)?;
        if let Some(token) = pipeline {
            loaded.pipeline = Some(token.to_owned());
        }
        Ok(loaded.routes.clone())
    }

    /// Lets a stream of the previous stage in.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] or [`Error::Pipeline`].
    pub fn check_pipeline(&self, token: Option<&str>) -> Result<Ticket, Error> {
        let guard = self.lock();
        let loaded = guard.as_ref().ok_or_else(|| self.not_loaded())?;
        if token.is_none() || loaded.pipeline.as_deref() != token {
            return Err(Error::Pipeline { worker: self.worker.clone() });
        }
        Ok(loaded.ticket())
    }

    /// Queues a step; waits while the queue is full, so that a slow stage slows its caller.
    ///
    /// # Errors
    /// [`Error`] if it was made for another plan or nothing is loaded.
    pub async fn submit(&self, ticket: &Ticket, step: Step) -> Result<(), Error> {
        let jobs = {
            let guard = self.lock();
            let loaded = guard.as_ref().ok_or_else(|| self.not_loaded())?;
            if !loaded.ended.subscribe().same_channel(&ticket.ended) {
                return Err(self.not_loaded());
            }
            self.check_generation(&loaded.about, step.generation)?;
            loaded.progress.received(step.step);
            loaded.queue.place()
        };
        // It waits from now on, also where the queue is full.
        let job = Job::new(&self.worker, step);
        jobs.send(job).await.map_err(|_| self.not_loaded())
    }

    /// The generation of the loaded stage, and how far it is.
    ///
    /// # Errors
    /// [`Error::NotLoaded`].
    pub fn progress(&self) -> Result<(u64, Report), Error> {
        let guard = self.lock();
        let loaded = guard.as_ref().ok_or_else(|| self.not_loaded())?;
        Ok((loaded.about.generation, loaded.progress.report()))
    }

    fn check_generation(&self, about: &About, found: u64) -> Result<(), Error> {
        if about.generation == found {
            return Ok(());
        }
        Err(Error::Generation { worker: self.worker.clone(), loaded: about.generation, found })
    }

    pub(crate) fn not_loaded(&self) -> Error {
        Error::NotLoaded { worker: self.worker.clone() }
    }

    fn resting(&self) -> MutexGuard<'_, Vec<Resting>> {
        // It is only assigned and taken.
        self.resting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Loaded>> {
        // Critical sections only assign: a poisoned lock still holds a whole value.
        self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The body of the stage's thread: until the queue has ended. It sends each result before it takes the next step: nobody
/// is woken only to hand a result on.
fn compute(
    mut turns: Turns<Job>,
    mut run: impl FnMut(Job) -> Result<Step, Failure>,
    send: impl Fn(Step),
    fail: impl Fn(u64, Failure),
) {
    while let Some(job) = turns.take() {
        let number = job.number();
        match run(job) {
            Ok(step) => send(step),
            Err(failure) => fail(number, failure),
        }
    }
}

/// Sends a step on its way, and says whether it left; no longer than the stage is loaded, as what is behind a route may
/// take nothing any more.
async fn send(routes: &Routes, step: Step, mut end: watch::Receiver<()>) -> bool {
    tokio::select! {
        left = routes.send(step) => left,
        _ = end.changed() => false, // Nothing is ever sent: it ends with the sender.
    }
}

#[cfg(test)]
impl Runtime {
    /// Lets a blob rest as if a stage had computed with it.
    pub(crate) fn rest(&self, OpenBlob { manifest, blob, in_use: _ }: OpenBlob) {
        self.resting().push((manifest, blob));
    }
}
