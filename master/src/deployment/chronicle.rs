//! What happens to a deployment is told to people who watch the service, too.
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use super::event::{Event, Observer};
use crate::distributor::Progress;
use crate::monitor::Monitor;

/// Notes what happens, and passes it on.
pub(crate) struct Noting<O> {
    /// Whose chronicle it is.
    pub monitor: Arc<Monitor>,
    /// Who is told, too.
    pub then: O,
}

impl<O: Observer> Observer for Noting<O> {
    fn tell(&self, event: &Event<'_>) {
        // How layers are planned and pushed is shown while it happens.
        if !matches!(event, Event::Planned(_) | Event::Pushed(_)) {
            self.monitor.note(event.to_string());
        }
        self.then.tell(event);
    }

    fn follow(
        &self,
        progress: Arc<Progress>,
        ended: oneshot::Receiver<()>,
    ) -> BoxFuture<'static, ()> {
        self.then.follow(progress, ended)
    }
}
