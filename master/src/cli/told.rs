//! What happens to a deployment, in words on standard error.
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::out::{self, Tell};
use super::{announce, report, show};
use crate::deployment::event::{Event, Observer};
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
        match event {
            // On standard error nothing of this fails.
            Event::Planned(outlook) => {
                announce::outlook(outlook, Tell::Notes, "").ok();
            }
            Event::Pushed(pushed) => out::note(report::push_summary(pushed)),
            event => out::note(event),
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
