//! What happens to a deployment, for whoever watches it: nothing here is printed.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cake_checkpoint::units::format_bytes;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::Error;
use super::facts::{Copies, Outlook, PushReport};
use crate::distributor::Progress;
use crate::pipeline;

/// Who is told what happens.
pub(crate) trait Observer: Send + Sync {
    /// Something happened. It may wait for whoever reads, but not for what happens next.
    fn tell(&self, event: &Event<'_>);

    /// Follows a push until `ended` resolves, in whichever way; the push itself goes on beside it.
    fn follow(
        &self,
        progress: Arc<Progress>,
        ended: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()>;
}

/// Nobody listens.
pub(crate) struct Quiet;

impl Observer for Quiet {
    fn tell(&self, _: &Event<'_>) {}

    fn follow(&self, _: Arc<Progress>, ended: oneshot::Receiver<()>) -> BoxFuture<'static, ()> {
        Box::pin(async { drop(ended.await) })
    }
}

/// Something that happened.
pub(crate) enum Event<'a> {
    /// Something is not as it should be but does not stop anything; one sentence.
    Warning(&'a str),
    /// A text is run through the model, of which so many layers are done.
    Calibrating { done: usize, layers: usize },
    /// A plan was made again, and its blobs are pushed next.
    Planned(Outlook<'a>),
    /// Its blobs are where they have to be.
    Pushed(&'a PushReport),
    /// A worker found blobs damaged and discarded them; they are pushed again.
    Damaged { worker: &'a str, blobs: usize },
    /// A stage was lost: its layers move to who is left.
    Lost(&'a pipeline::Error),
    /// Layers move for a reason that is no loss.
    Moving { why: &'a str },
    /// They could not; another plan is made.
    NotMoved(&'a Error),
    /// There could be a better plan, but it cannot be carried out.
    Staying(&'a Error),
    /// Nothing can be computed yet, and it is tried again.
    Waiting(&'a Error),
    /// All is well again, so long after what went wrong.
    Whole { after: Duration },
    /// Workers hold copies for a loss.
    Copied(Copies),
    /// They do not, yet.
    NotCopied(&'a Error),
    /// What `from` makes goes to `to` over the master for a while.
    Rerouted { from: &'a str, to: &'a str, pause: Duration, error: &'a pipeline::Error },
    /// A worker gets no layers for a while.
    SetAside { worker: &'a str, pause: Duration, reason: &'a str },
    /// A worker gets none for long, or until it is started again.
    Quarantined { worker: &'a str, pause: Duration, reason: &'a str },
    /// There is no door for workers.
    NoDoor(&'a Error),
    /// A worker joined at the door.
    Joined { name: &'a str, address: &'a str, worker_id: &'a str },
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Warning(words) => f.write_str(words),
            Self::Calibrating { done, layers } => {
                write!(
                    f,
                    "running a text through the model to see where errors count: {done} of {layers} layers"
                )
            }
            Self::Planned(ref outlook) => {
                let stages = outlook.plan.stages.iter();
                let stages = stages.map(|stage| format!("{} {}", stage.device, stage.layers));
                write!(f, "layers are planned: {}", stages.collect::<Vec<_>>().join(", "))
            }
            Self::Pushed(pushed) => {
                write!(f, "{} pushed", format_bytes(pushed.pushed_bytes))
            }
            Self::Damaged { worker, blobs } => {
                let things = if blobs == 1 { "blob" } else { "blobs" };
                write!(
                    f,
                    "worker {worker:?} found {blobs} damaged {things} and discarded them: pushing again"
                )
            }
            Self::Lost(error) => write!(f, "{error}: layers move to who is left"),
            Self::Moving { why } => write!(f, "{why}: layers move"),
            Self::NotMoved(error) => write!(f, "layers could not move: {error}"),
            Self::Staying(error) => write!(f, "layers stay where they are: {error}"),
            Self::Waiting(error) => write!(f, "cannot go on yet: {error}"),
            Self::Whole { after } => write!(f, "whole again after {:.1} s", after.as_secs_f64()),
            Self::Copied(Copies { pushed_bytes, covered, of }) => {
                let bytes = format_bytes(pushed_bytes);
                write!(
                    f,
                    "copies are there for a loss of {covered} of {of} workers ({bytes} pushed for that)"
                )
            }
            Self::NotCopied(error) => write!(f, "no copies for a loss yet: {error}"),
            Self::Rerouted { from, to, pause, error } => {
                let pause = seconds(pause);
                write!(f, "what {from:?} makes goes to {to:?} over the master for {pause}: {error}")
            }
            Self::SetAside { worker, pause, reason } => {
                write!(f, "{worker:?} gets no layers for {}: {reason}", seconds(pause))
            }
            Self::Quarantined { worker, pause, reason } => {
                let pause = seconds(pause);
                write!(
                    f,
                    "{worker:?} is in quarantine for {pause} or until it is started again: {reason}"
                )
            }
            Self::NoDoor(error) => write!(f, "no door for workers: {error}"),
            Self::Joined { name, address, worker_id } => {
                write!(f, "{name} at {address} joined as member {worker_id}")
            }
        }
    }
}

/// A pause in words.
pub(crate) fn seconds(pause: Duration) -> String {
    match pause.as_secs() {
        0..120 => format!("{:.1} s", pause.as_secs_f64()),
        120..7200 => format!("{} minutes", pause.as_secs() / 60),
        _ => format!("{} hours", pause.as_secs() / 3600),
    }
}
