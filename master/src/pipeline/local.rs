//! Layers that the master runs itself: a thread with a queue, like a worker's stage.
use std::thread::JoinHandle;

use cake_engine::Stage;
use cake_proto::{Failure, Step, limits};
use cake_stage::{Job, StepEngine};
use tokio::sync::mpsc;
use tracing::warn;

use super::Error;
use crate::sizing::LOCAL;

/// What comes out: the computed step, or (step number, why it failed).
pub(super) type Output = Result<Step, (u64, Failure)>;

/// The master's own stage. The thread ends when this is dropped.
#[derive(Debug)]
pub struct LocalStage {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

impl LocalStage {
    /// Starts the thread, which computes steps that are `wanted` still, and gives every result to `done` before it
    /// takes the next step: nobody is woken only to hand a result on.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(
        stage: Stage,
        wanted: impl Fn(u64) -> bool + Send + 'static,
        done: impl Fn(Output) + Send + 'static,
    ) -> std::io::Result<Self> {
        let layers = stage.layers();
        let mut engine = StepEngine::new(stage);
        Self::spawn(move |job| engine.run(job).map_err(|it| it.failure(layers)), wanted, done)
    }

    /// As [`Self::start`], with what computes.
    pub(super) fn spawn(
        run: impl FnMut(Job) -> Result<Step, Failure> + Send + 'static,
        wanted: impl Fn(u64) -> bool + Send + 'static,
        done: impl Fn(Output) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>(limits::STEPS_QUEUED);
        let thread = std::thread::Builder::new()
            .name("cake-stage".into())
            .spawn(move || compute(queue, wanted, run, done))?;
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

/// The body of the thread: until the other end of the queue is gone.
fn compute(
    mut queue: mpsc::Receiver<Job>,
    wanted: impl Fn(u64) -> bool,
    mut run: impl FnMut(Job) -> Result<Step, Failure>,
    done: impl Fn(Output),
) {
    while let Some(job) = queue.blocking_recv() {
        let number = job.number();
        if wanted(number) {
            done(run(job).map_err(|failure| (number, failure)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::tests::step;
    use super::*;

    #[test]
    fn of_queued_steps_those_that_nobody_waits_for_are_not_computed() {
        let (jobs, queue) = mpsc::channel(4);
        for number in 1..=3 {
            jobs.try_send(Job::new(LOCAL, step(number))).expect("room");
        }
        drop(jobs);
        let (mut run, done) = (0, RefCell::new(Vec::new()));
        let fail = |_| {
            run += 1;
            Err(Failure::other("no"))
        };
        let note = |output: Output| done.borrow_mut().push(output.map(|step| step.step));
        compute(queue, |number| number != 2, fail, note);
        assert_eq!(run, 2);
        assert_eq!(done.into_inner(), [1, 3].map(|number| Err((number, Failure::other("no")))));
    }
}
