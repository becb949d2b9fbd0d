//! Layers that the master runs itself: a thread with a queue, like a worker's stage.
use std::time::Instant;

use cake_engine::{Batch, BatchItem, Stage};
use cake_proto::{Step, limits};
use tokio::sync::mpsc;

use super::Error;

/// What comes out: the computed step, or (step number, why it failed).
pub(super) type Output = Result<Step, (u64, String)>;

/// The master's own stage. The thread ends when this is dropped.
#[derive(Debug)]
pub struct LocalStage {
    jobs: mpsc::Sender<Step>,
}

impl LocalStage {
    /// Starts the thread; its results come out of the receiver, in order.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn start(stage: Stage) -> std::io::Result<(Self, mpsc::Receiver<Output>)> {
        let (jobs, mut queue) = mpsc::channel::<Step>(limits::STEPS_IN_FLIGHT);
        let (results, outgoing) = mpsc::channel(limits::STEPS_IN_FLIGHT);
        let mut stage = stage;
        std::thread::Builder::new().name("cake-stage".into()).spawn(move || {
            while let Some(step) = queue.blocking_recv() {
                if results.blocking_send(run(&mut stage, step)).is_err() {
                    return;
                }
            }
        })?;
        Ok((Self { jobs }, outgoing))
    }

    /// Queues a step; waits while the queue is full.
    pub(super) async fn submit(&self, step: Step) -> Result<(), Error> {
        self.jobs.send(step).await.map_err(|_| Error::Closed)
    }
}

fn run(stage: &mut Stage, mut step: Step) -> Output {
    let started = Instant::now();
    let items = step.items.iter().map(|item| BatchItem {
        sequence: item.sequence,
        position: item.position,
        rows: item.rows,
        blocks: item.blocks.clone(),
    });
    let batch = Batch { items: items.collect() };
    let hidden = std::mem::take(&mut step.hidden);
    step.hidden = stage.forward(&batch, hidden).map_err(|error| (step.step, error.to_string()))?;
    step.stage_us.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    Ok(step)
}
