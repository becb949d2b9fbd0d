//! What happens to a deployment, for whoever watches it: nothing here is printed.
use std::sync::Arc;
use std::time::Duration;

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
