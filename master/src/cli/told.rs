//! What happens to a deployment, in words on standard error.
use std::sync::Arc;

use cake_checkpoint::units::format_bytes;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::out::{self, Tell};
use super::{announce, report, show};
use crate::chronicle::{Chronicle, Kind};
use crate::deployment::event::{Event, Observer};
use crate::deployment::facts::Copies;
use crate::deployment::trust::seconds;
use crate::distributor::Progress;
use crate::planner::PlannedStage;

/// Tells people what happens.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// Where it is written down for those who ask later.
    chronicle: Option<Arc<Chronicle>>,
    /// Whether they see how far a push is.
    draws: bool,
}

impl Words {
    /// Everything, with the progress of each push.
    pub(super) fn loud() -> Self {
        Self { draws: true, chronicle: None }
    }

    /// Everything, and written down for those who ask later.
    pub(super) fn kept(chronicle: &Arc<Chronicle>) -> Self {
        Self { draws: true, chronicle: Some(chronicle.clone()) }
    }

    /// For a command that may print JSON: nobody watches its pushes then.
    pub(super) fn unless(json: bool) -> Self {
        Self { draws: !json, chronicle: None }
    }
}

impl Observer for Words {
    fn tell(&self, event: &Event<'_>) {
        let words = words(event);
        // On standard error nothing of this fails.
        match event {
            Event::Planned(outlook) => drop(announce::outlook(outlook, Tell::Notes, "")),
            Event::Warning(_) => out::note(format_args!("warning: {words}")),
            _ => out::note(&words),
        }
        if let Some(chronicle) = &self.chronicle {
            chronicle.add(kind(event), words);
        }
    }

    fn follow(
        &self,
        progress: Arc<Progress>,
        ended: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()> {
        let draws = self.draws;
        Box::pin(async move {
            if draws {
                show::draw(progress, ended).await;
            }
        })
    }
}

/// What an event is about.
fn kind(event: &Event<'_>) -> Kind {
    match event {
        Event::Warning(_) | Event::NoDoor(_) => Kind::Warning,
        Event::Planned(_)
        | Event::Pushed(_)
        | Event::Moving { .. }
        | Event::NotMoved(_)
        | Event::Staying(_)
        | Event::Copied(_)
        | Event::NotCopied(_) => Kind::Layers,
        Event::Waiting(_) | Event::Whole { .. } => Kind::Service,
        Event::Lost(_)
        | Event::Damaged { .. }
        | Event::Rerouted { .. }
        | Event::SetAside { .. }
        | Event::Quarantined { .. }
        | Event::Joined { .. } => Kind::Worker,
    }
}

/// An event in a sentence.
fn words(event: &Event<'_>) -> String {
    match *event {
        Event::Warning(words) => words.to_owned(),
        Event::Planned(ref outlook) => {
            let stage = |stage: &PlannedStage| format!("{} {}", stage.device, stage.layers);
            let stages: Vec<String> = outlook.plan.stages.iter().map(stage).collect();
            format!("layers are planned: {}", stages.join(", "))
        }
        Event::Pushed(pushed) => report::push_summary(pushed),
        Event::Damaged { worker, blobs } => {
            let things = if blobs == 1 { "blob" } else { "blobs" };
            format!(
                "worker {worker:?} found {blobs} damaged {things} and discarded them: pushing again"
            )
        }
        Event::Lost(error) => format!("{error}: layers move to who is left"),
        Event::Moving { why } => format!("{why}: layers move"),
        Event::NotMoved(error) => format!("layers could not move: {error}"),
        Event::Staying(error) => format!("layers stay where they are: {error}"),
        Event::Waiting(error) => format!("cannot go on yet: {error}"),
        Event::Whole { after } => format!("whole again after {:.1} s", after.as_secs_f64()),
        Event::Copied(Copies { pushed_bytes, covered, of }) => {
            let bytes = format_bytes(pushed_bytes);
            format!(
                "copies are there for a loss of {covered} of {of} workers ({bytes} pushed for that)"
            )
        }
        Event::NotCopied(error) => format!("no copies for a loss yet: {error}"),
        Event::Rerouted { from, to, pause, error } => {
            let pause = seconds(pause);
            format!("what {from:?} makes goes to {to:?} over the master for {pause}: {error}")
        }
        Event::SetAside { worker, pause, reason } => {
            let pause = seconds(pause);
            format!("{worker:?} gets no layers for {pause}: {reason}")
        }
        Event::Quarantined { worker, pause, reason } => {
            let pause = seconds(pause);
            format!(
                "{worker:?} is in quarantine for {pause} or until it is started again: {reason}"
            )
        }
        Event::NoDoor(error) => format!("no door for workers: {error}"),
        Event::Joined { name, address, worker_id } => {
            format!("{name} at {address} joined as member {worker_id}")
        }
    }
}

/// Tells people what is not as it should be but does not stop anything.
pub(super) fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| out::note(format_args!("warning: {warning}")));
}
