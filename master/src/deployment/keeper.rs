//! Keeps a service going: when a stage is lost, its layers move to who is left; when a worker leaves, they move
//! before it goes; when a faster pipeline can be had, it is taken. Who is to blame for a loss is remembered (`trust`).
//!
//! ```text
//!   ┌──somebody leaves, or comes: what moves is pushed beside the work──┐
//!   ▼                                                                   │
//! ready ──a stage is lost──▶ recovering ──planned, pushed, loaded──▶ ready
//!                              │    ▲ tried again and again
//!                              ▼    │
//!                            broken, once requests have waited for --grace
//! ```
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::task::block_in_place;

use super::choice::Chosen;
use super::event::{Event, seconds};
use super::prepared::Prepared;
use super::trust::{Gone, LeftOut, Trust};
use super::{Error, PlanRequest};
use crate::cluster::Whereabouts;
use crate::monitor::Monitor;
use crate::pipeline::{self, Lateness, Paces, Pipeline};
use crate::scheduler::Scheduler;
use crate::wonder::Wonder;

/// Pause before what did not succeed is tried again, at first.
const PAUSE: Duration = Duration::from_millis(200);
/// How many rows of a prompt are computed in the time of a generated one, at least.
const PROMPT_SPEED: f64 = 8.0;
/// Longest that a faster pipeline waits for sequences to finish.
const MOST_PATIENCE: Duration = Duration::from_secs(30);
/// How often it looks whether they have.
const LOOK_BUSY: Duration = Duration::from_millis(50);
/// How often lost workers are looked for while all is well.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often it is written down how fast the stages really are.
const LEARN: Duration = Duration::from_secs(30);

/// Whether layers may move although sequences run: when their time is over, or none is left. Never while a step is late:
/// it may be lost, and over another pipeline the same would have to be found out once more.
fn may_move(is_over: bool, is_late: bool, running: usize) -> bool {
    !is_late && (is_over || running == 0)
}

/// What is needed to build a pipeline anew.
pub(crate) struct Keeper {
    /// The model and the workers that are held.
    pub prepared: Prepared,
    /// Where workers are that may come back.
    pub cluster: Whereabouts,
    /// What was asked of the plan.
    pub request: PlanRequest,
    /// Whether workers hold copies for a loss of one of them.
    pub spares: bool,
    /// How long requests may wait.
    pub grace: Duration,
    /// Whose sequences go on.
    pub scheduler: Scheduler,
    /// Who is told.
    pub monitor: Arc<Monitor>,
    /// How members have behaved.
    pub trust: Trust,
    /// Tells when the present pipeline breaks.
    pub broken: watch::Receiver<Option<pipeline::Error>>,
    /// How long its stages take.
    pub paces: Paces,
    /// Whether one of its steps is late.
    pub lateness: Lateness,
}

/// What a keeper has to do something about.
enum News {
    /// The pipeline broke.
    Lost(pipeline::Error),
    /// Another plan is better, for this reason, and its blobs are where they have to be.
    Better { why: String, chosen: Box<Chosen>, hurry: bool },
}

impl Keeper {
    /// Watches and rebuilds until it is to stop, or the scheduler is gone.
    pub(crate) async fn run(mut self, stop: oneshot::Receiver<()>) -> Self {
        tokio::select! {
            () = self.keep() => {}
            _ = stop => {}
        }
        self
    }

    async fn keep(&mut self) {
        loop {
            let news = self.news().await;
            let mut since = Instant::now();
            let (pipeline, moved) = match news {
                News::Lost(error) => {
                    self.prepared.tell(&Event::Lost(&error));
                    self.monitor.lost(&error);
                    self.scheduler.suspend().await; // Its memory is needed for what comes next.
                    (self.rebuilt(&error, since).await, false)
                }
                News::Better { why, chosen, hurry } => {
                    if !hurry && !self.let_finish().await {
                        continue; // Something else happened, which comes as news once more.
                    }
                    if let Err(error) = self.prepared.reserve(&chosen) {
                        self.prepared.tell(&Event::Staying(&error));
                        continue;
                    }
                    self.prepared.tell(&Event::Moving { why: &why });
                    since = Instant::now();
                    self.monitor.not_yet(&why);
                    self.scheduler.suspend().await;
                    self.prepared.adopt(*chosen).await;
                    let built = self.build().await;
                    let pipeline = match built {
                        Ok(pipeline) => pipeline,
                        Err(error) => {
                            self.prepared.tell(&Event::NotMoved(&error));
                            self.blame_start(&error);
                            self.rebuilt(&pipeline::Error::Closed, since).await
                        }
                    };
                    self.prepared.let_leave();
                    (pipeline, true)
                }
            };
            (self.broken, self.paces) = (pipeline.watch(), pipeline.paces());
            self.lateness = pipeline.lateness();
            let (chunk, rows) = (self.prepared.chunk(), self.prepared.promise().chunk);
            if !self.scheduler.resume(pipeline, chunk, rows) {
                return;
            }
            let after = since.elapsed();
            let seconds = after.as_secs_f64();
            // Whoever sees that it is ready finds it counted.
            match moved {
                true => self.monitor.metrics.moved(seconds),
                false => self.monitor.metrics.recovered(seconds),
            }
            self.monitor.ready();
            self.prepared.tell(&Event::Whole { after });
        }
    }

    /// Lets the pipeline, the workers and the master's own weights go, where nobody has sequences any more.
    pub(crate) async fn put_away(self) {
        let Self { prepared, scheduler, .. } = self;
        scheduler.suspend().await;
        let ended = scheduler.ended();
        drop((scheduler, prepared));
        ended.await;
    }

    /// Waits for something to do. Meanwhile workers that come back are taken, and copies brought for losses
    /// that may come.
    async fn news(&mut self) -> News {
        let Self { prepared, cluster, request, spares, monitor, broken, paces, trust, .. } = self;
        let mind = async {
            let mut present: Option<Vec<String>> = None;
            let mut told = String::new();
            let mut covered = !*spares;
            let mut learned: Option<Instant> = None;
            monitor.metrics.copied(0, 0);
            prepared.release_unused().await;
            loop {
                let left_out = left_out(trust, prepared);
                trust.tell(&prepared.members, monitor);
                // Whoever may be used again comes, as it were.
                let (there, leaving) = (prepared.instances(&left_out.all()), prepared.leaving());
                let came = present
                    .as_ref()
                    .is_some_and(|before| there.iter().any(|instance| !before.contains(instance)));
                let changed = present.as_ref() != Some(&there);
                monitor.members(prepared.present());
                let tried = if !leaving.is_empty() {
                    let why = format!("{} leaves", leaving.join(" and "));
                    let better =
                        |chosen| News::Better { why, chosen: Box::new(chosen), hurry: true };
                    prepared.plan_leave(request, &left_out).await.map(|chosen| Some(better(chosen)))
                } else if came {
                    let why = "a faster pipeline is there".to_owned();
                    let better =
                        |chosen| News::Better { why, chosen: Box::new(chosen), hurry: false };
                    prepared.plan_faster(request, &left_out).await.map(|chosen| chosen.map(better))
                } else {
                    Ok(None)
                };
                match tried {
                    Ok(Some(news)) => return news,
                    Ok(None) => {}
                    Err(error) if error.to_string() == told => {}
                    Err(error) => {
                        prepared.tell(&Event::Staying(&error));
                        told = error.to_string();
                    }
                }
                // While layers have to go from a device, and cannot, copies wait.
                let is_settled = leaving.is_empty();
                if *spares && is_settled && (changed || !covered) {
                    let copies = tokio::select! {
                        copies = prepared.bring_copies(request, &left_out) => copies,
                        // Half-pushed blobs go on later.
                        () = somebody_leaves(prepared) => continue,
                    };
                    covered = copies.is_ok();
                    match copies {
                        Ok(copies) => {
                            monitor.metrics.copied(copies.pushed_bytes, copies.covered);
                            prepared.tell(&Event::Copied(copies));
                        }
                        Err(error) if error.to_string() == told => {}
                        Err(error) => {
                            monitor.metrics.copied(0, 0);
                            prepared.tell(&Event::NotCopied(&error));
                            told = error.to_string();
                        }
                    }
                }
                present = Some(there);
                covered &= is_settled;
                if learned.is_none_or(|at| at.elapsed() >= LEARN)
                    && let Some(seconds) = paces.take()
                {
                    block_in_place(|| prepared.learn(Some(&seconds), None));
                    learned = Some(Instant::now());
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                    () = cluster.membership.news.notified() => {}
                    wonder = monitor.questions.next() => {
                        let Wonder { name, bytes, answer } = wonder;
                        let foreseen = prepared.foresee(request, &left_out, (name, bytes)).await;
                        answer.send(foreseen).ok(); // Who asked may be gone.
                    }
                }
                prepared.rejoin(cluster).await;
            }
        };
        tokio::select! {
            biased;
            error = broken.wait_for(Option::is_some) => News::Lost(match error {
                Ok(error) => error.clone().unwrap_or(pipeline::Error::Closed),
                Err(_) => pipeline::Error::Closed,
            }),
            news = mind => news,
        }
    }

    /// Gives sequences that run as long to finish as it would take to compute them again, and who is asked where a step
    /// is the time to say it: over another pipeline the same may happen once more. False if a stage is lost meanwhile, or
    /// somebody wants to leave.
    async fn let_finish(&self) -> bool {
        let held = self.scheduler.load().kv_blocks.held * cake_engine::BLOCK_POSITIONS;
        let row = self.prepared.plan().bottleneck_seconds / PROMPT_SPEED;
        let patience = Duration::from_secs_f64(held as f64 * row).min(MOST_PATIENCE);
        let end = Instant::now() + patience;
        loop {
            let (is_over, late) = (Instant::now() >= end, self.lateness.is_late());
            // After that: a step that was late a moment ago is not late once its pipeline broke.
            if self.broken.borrow().is_some() || !self.prepared.leaving().is_empty() {
                return false;
            }
            if may_move(is_over, late, self.scheduler.load().running) {
                return true;
            }
            tokio::time::sleep(LOOK_BUSY).await;
        }
    }

    /// Another pipeline, however long that takes; who waits is told after a while that it takes long.
    async fn rebuilt(&mut self, loss: &pipeline::Error, since: Instant) -> Pipeline {
        let mut told = String::new();
        let mut pause = PAUSE;
        let before = Gone::of(&self.prepared.members);
        self.trust.doubt(loss, &mut self.prepared.members);
        let mut slow = Some(self.prepared.refresh().await);
        self.prepared.give_back(); // Its stages are put away.
        self.monitor.members(self.prepared.present());
        let Prepared { members, observer, .. } = &self.prepared;
        self.trust.blame(loss, members, &before, &self.monitor, &**observer);
        loop {
            let tried = self.rebuild(slow.take()).await;
            self.trust.tell(&self.prepared.members, &self.monitor);
            let error = match tried {
                Ok(pipeline) => return pipeline,
                Err(error) => error,
            };
            // Who waits is in nobody's way.
            self.prepared.give_back();
            self.blame_start(&error);
            let wait = match &error {
                Error::LostAgain { wait, .. } => format!(" of {} more", seconds(*wait)),
                _ => String::new(),
            };
            let words = error.to_string();
            let why = format!("{loss}; {words}{wait}{}", self.monitor.aside());
            if words != told {
                self.prepared.tell(&Event::Waiting(&error));
                told = words;
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
            self.monitor.members(self.prepared.present());
        }
    }

    /// Remembers who could not be used for another pipeline.
    fn blame_start(&mut self, error: &Error) {
        if let Error::Open(pipeline::OpenError::Cluster(error)) = error {
            let Prepared { members, observer, .. } = &self.prepared;
            self.trust.blame_start(error, members, &self.monitor, &**observer);
        }
    }

    /// Plans, pushes and loads with whoever is there now; `slow` are those that are slow to answer, if it is known.
    async fn rebuild(&mut self, slow: Option<Vec<String>>) -> Result<Pipeline, Error> {
        let slow = match slow {
            Some(slow) => slow,
            None => self.prepared.refresh().await,
        };
        let LeftOut { set_aside, mut avoided } = left_out(&self.trust, &self.prepared);
        avoided.extend(slow);
        self.prepared.replan(&self.request, &LeftOut { set_aside, avoided }).await?;
        let used = self.prepared.remotes().into_iter().map(|(_, member)| member);
        if let Some((worker, wait)) = self.trust.spared(used) {
            return Err(Error::LostAgain { worker, wait });
        }
        self.build().await
    }

    /// Pushes and loads what is planned.
    async fn build(&mut self) -> Result<Pipeline, Error> {
        self.monitor.planned(self.prepared.planned());
        self.prepared.cut = self.trust.cut(&self.prepared.members);
        self.prepared.tell(&Event::Planned(self.prepared.outlook()));
        let mut pushed = self.prepared.push().await?;
        self.prepared.tell(&Event::Pushed(&pushed));
        self.monitor.loading();
        let pipeline = self.prepared.open(&mut pushed).await?;
        self.monitor.metrics.pushed(pushed.pushed_bytes, pushed.reused_bytes);
        self.monitor.wired(pipeline.stages());
        Ok(pipeline)
    }
}

/// Members that the next plan does without: for what they did, or because their owner wants that.
pub(crate) fn left_out(trust: &Trust, prepared: &Prepared) -> LeftOut {
    let mut left_out = trust.left_out(&prepared.members);
    left_out.avoided.extend(prepared.draining());
    left_out
}

/// Waits until a worker wants to leave.
async fn somebody_leaves(prepared: &Prepared) {
    while prepared.leaving().is_empty() {
        tokio::time::sleep(LOOK_BUSY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_move_when_nobody_needs_them_where_they_are() {
        assert!(may_move(true, false, 3), "sequences had their time");
        assert!(may_move(false, false, 0), "none is left");
        assert!(!may_move(false, false, 3));
        assert!(!may_move(true, true, 3) && !may_move(false, true, 0), "a step is stuck");
    }
}
