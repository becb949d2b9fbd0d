//! What happens to a deployment, in words on standard error.
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::out::{self, Tell};
use super::{announce, report, show};
use crate::chronicle::{Chronicle, Kind};
use crate::deployment::event::{Event, Observer};
use crate::distributor::Progress;

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
        let words = match event {
            Event::Pushed(pushed) => report::push_summary(pushed),
            event => event.to_string(),
        };
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
        Event::Calibrating { .. }
        | Event::Planned(_)
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

/// Tells people what is not as it should be but does not stop anything.
pub(super) fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| out::note(format_args!("warning: {warning}")));
}
