//! Layers that the master runs itself: a thread with a queue, like a worker's stage.
use std::thread::JoinHandle;

use cake_engine::Stage;
use cake_proto::{Step, limits};
use cake_worker::runtime::{Job, StepEngine};
use tokio::sync::mpsc;
use tracing::warn;

use super::Error;
use crate::sizing::LOCAL;

/// What comes out: the computed step, or (step number, why it failed).
pub(super) type Output = Result<Step, (u64, String)>;

/// The master's own stage. The thread ends when this is dropped.
#[derive(Debug)]
pub struct LocalStage {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl LocalStage {
    /// Starts the thread, which gives every result to `done` before it takes the next step: nobody is woken
    /// only to hand a result on.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(
        stage: Stage,
        done: impl Fn(Output) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(limits::STEPS_QUEUED);
        let mut engine = StepEngine::new(stage);
        let thread = std::thread::Builder::new().name("cake-stage".into()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                let number = job.number();
                done(engine.run(job).map_err(|message| (number, message)));
            }
        })?;
        Ok(Self { jobs, thread })
    }

    /// Queues a step; waits while the queue is full.
    pub(super) async fn submit(&self, step: Step) -> Result<(), Error> {
        self.jobs.send(Job::new(LOCAL, step)).await.map_err(|_| Error::Closed)
    }

    /// Waits until its steps are over and its memory is free. Call from a thread that may block.
    pub(super) fn close(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            warn!("the stage's thread had panicked");
        }
    }
}
