//! Keeps a service going: when a stage is lost, its layers move to who is left.
//!
//! ```text
//! ready ──a stage is lost──▶ recovering ──planned, pushed, loaded──▶ ready
//!                              │    ▲ tried again and again
//!                              ▼    │
//!                            broken, once requests have waited for --grace
//! ```
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::Error;
use super::args::PlanArgs;
use super::out::{self, Tell};
use super::prepare::Prepared;
use crate::cluster::Whereabouts;
use crate::monitor::Monitor;
use crate::pipeline::{self, Pipeline};
use crate::scheduler::Scheduler;

/// Pause before what did not succeed is tried again, at first.
const PAUSE: Duration = Duration::from_millis(200);
/// How often lost workers are looked for while all is well.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What is needed to build a pipeline anew.
pub(super) struct Keeper {
    /// The model and the workers that are held.
    pub prepared: Prepared,
    /// Where workers are that may come back.
    pub cluster: Whereabouts,
    /// What was asked of the plan.
    pub plan: PlanArgs,
    /// How long requests may wait.
    pub grace: Duration,
    /// Whose sequences go on.
    pub scheduler: Scheduler,
    /// Who is told.
    pub monitor: Arc<Monitor>,
    /// Tells when the present pipeline breaks.
    pub broken: watch::Receiver<Option<pipeline::Error>>,
}

impl Keeper {
    /// Watches and rebuilds for as long as it is polled, and the scheduler lives.
    pub(super) async fn run(mut self) {
        loop {
            let error = self.loss().await;
            let since = Instant::now();
            out::note(format_args!("{error}: its layers move to who is left"));
            self.monitor.lost(&error);
            self.scheduler.suspend().await; // Its memory is needed for what comes next.
            let pipeline = self.rebuilt(&error.to_string(), since).await;
            self.broken = pipeline.watch();
            let (chunk, rows) = (self.prepared.chunk(), self.prepared.promise().chunk);
            if !self.scheduler.resume(pipeline, chunk, rows) {
                return;
            }
            self.monitor.ready();
            let seconds = since.elapsed().as_secs_f64();
            self.monitor.metrics.recovered(seconds);
            out::note(format_args!("whole again after {seconds:.1} s"));
        }
    }

    /// Why the pipeline broke, once it has. Until then, workers that come back are taken for the next plan.
    async fn loss(&mut self) -> pipeline::Error {
        let Self { prepared, cluster, monitor, broken, .. } = self;
        let rejoin = async {
            loop {
                monitor.spares(prepared.spares());
                tokio::time::sleep(LOOK_AGAIN).await;
                prepared.rejoin(cluster).await;
            }
        };
        tokio::select! {
            error = broken.wait_for(Option::is_some) => match error {
                Ok(error) => error.clone().unwrap_or(pipeline::Error::Closed),
                Err(_) => pipeline::Error::Closed,
            },
            () = rejoin => unreachable!("it has no end"),
        }
    }

    /// Another pipeline, however long that takes; who waits is told after a while that it takes long.
    async fn rebuilt(&mut self, loss: &str, since: Instant) -> Pipeline {
        let mut told = String::new();
        let mut pause = PAUSE;
        loop {
            let error = match self.rebuild().await {
                Ok(pipeline) => return pipeline,
                Err(error) => error.to_string(),
            };
            let why = format!("{loss}; {error}");
            if error != told {
                out::note(format_args!("cannot go on yet: {error}"));
                told.clone_from(&error);
            }
            match since.elapsed() >= self.grace {
                true => {
                    self.monitor.broken(&why);
                    self.scheduler.give_up(why);
                }
                false => self.monitor.not_yet(&why),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LOOK_AGAIN);
            // Not at once: who was lost a moment ago may take long to say nothing.
            self.prepared.rejoin(&self.cluster).await;
        }
    }

    /// Plans, pushes and loads with whoever is there now.
    async fn rebuild(&mut self) -> Result<Pipeline, Error> {
        self.prepared.replan(&self.plan).await?;
        self.monitor.planned(self.prepared.planned());
        let mut pushed = self.prepared.announce_and_push(Tell::Notes).await?;
        self.monitor.loading();
        let pipeline = self.prepared.open(Tell::Notes, &mut pushed).await?;
        self.monitor.metrics.pushed(pushed.pushed_bytes, pushed.reused_bytes);
        self.monitor.wired(pipeline.stages());
        Ok(pipeline)
    }
}
