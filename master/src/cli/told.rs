//! What happens to a deployment, in words on standard error.
use std::sync::Arc;

use cake_checkpoint::units::format_bytes;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::out::{self, Tell};
use super::{announce, report, show};
use crate::deployment::event::{Event, Observer};
use crate::deployment::facts::Copies;
use crate::deployment::trust::seconds;
use crate::distributor::Progress;

/// Tells people what happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// Whether they see how far a push is.
    draws: bool,
}

impl Words {
    /// Everything, with the progress of each push.
    pub(super) fn loud() -> Self {
        Self { draws: true }
    }

    /// For a command that may print JSON: nobody watches its pushes then.
    pub(super) fn unless(json: bool) -> Self {
        Self { draws: !json }
    }
}

impl Observer for Words {
    fn tell(&self, event: &Event<'_>) {
        match *event {
            Event::Warning(words) => out::note(format_args!("warning: {words}")),
            // On standard error nothing of this fails.
            Event::Planned(ref outlook) => {
                announce::outlook(outlook, Tell::Notes, "").ok();
            }
            Event::Pushed(pushed) => out::note(report::push_summary(pushed)),
            Event::Damaged { worker, blobs } => {
                let things = if blobs == 1 { "blob" } else { "blobs" };
                out::note(format_args!(
                    "worker {worker:?} found {blobs} damaged {things} and discarded them: pushing again"
                ));
            }
            Event::Lost(error) => out::note(format_args!("{error}: layers move to who is left")),
            Event::Moving { why } => out::note(format_args!("{why}: layers move")),
            Event::NotMoved(error) => out::note(format_args!("layers could not move: {error}")),
            Event::Staying(error) => {
                out::note(format_args!("layers stay where they are: {error}"));
            }
            Event::Waiting(error) => out::note(format_args!("cannot go on yet: {error}")),
            Event::Whole { after } => {
                out::note(format_args!("whole again after {:.1} s", after.as_secs_f64()));
            }
            Event::Copied(Copies { pushed_bytes, covered, of }) => {
                let bytes = format_bytes(pushed_bytes);
                out::note(format_args!(
                    "copies are there for a loss of {covered} of {of} workers ({bytes} pushed for that)"
                ));
            }
            Event::NotCopied(error) => out::note(format_args!("no copies for a loss yet: {error}")),
            Event::Rerouted { from, to, pause, error } => {
                let pause = seconds(pause);
                out::note(format_args!(
                    "what {from:?} makes goes to {to:?} over the master for {pause}: {error}"
                ));
            }
            Event::SetAside { worker, pause, reason } => {
                let pause = seconds(pause);
                out::note(format_args!("{worker:?} gets no layers for {pause}: {reason}"));
            }
            Event::Quarantined { worker, pause, reason } => {
                let pause = seconds(pause);
                out::note(format_args!(
                    "{worker:?} is in quarantine for {pause} or until it is started again: {reason}"
                ));
            }
            Event::NoDoor(error) => out::note(format_args!("no door for workers: {error}")),
            Event::Joined { name, address, worker_id } => {
                out::note(format_args!("{name} at {address} joined as member {worker_id}"));
            }
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

/// Tells people what is not as it should be but does not stop anything.
pub(super) fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| out::note(format_args!("warning: {warning}")));
}
