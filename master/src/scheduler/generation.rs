//! What whoever asked for a sequence holds of it, and how the end of the scheduler's task becomes known.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{Command, Error, Event};

/// How the scheduler's task ended, once it has.
pub(super) type End = watch::Receiver<Option<Arc<str>>>;

/// A sequence that waits or runs. Dropping it ends it and frees what it holds.
#[derive(Debug)]
pub struct Generation {
    pub(super) sequence: u64,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) end: End,
    pub(super) over: bool,
}

/// Waits for the end of the scheduler's task and tells how it was.
pub(super) async fn supervise(
    task: JoinHandle<Option<String>>,
    tell: watch::Sender<Option<Arc<str>>>,
) {
    let said = match task.await {
        Ok(Some(said)) => said,
        Ok(None) => "nobody could submit any more".to_owned(),
        Err(error) => match error.try_into_panic() {
            // What `panic!` and `expect` leave.
            Ok(panic) => match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(said), _) => (*said).to_owned(),
                (_, Some(said)) => said.clone(),
                _ => "it panicked".to_owned(),
            },
            Err(error) => error.to_string(),
        },
    };
    tell.send_replace(Some(said.into()));
}

/// How the scheduler's task ended, once it has.
pub(super) async fn how(mut end: End) -> Error {
    let end = end.wait_for(Option::is_some).await;
    let unseen = || "nobody saw how".into(); // With the runtime, whoever watches it ends as well.
    Error::Ended(end.ok().and_then(|end| end.clone()).unwrap_or_else(unseen))
}

impl Generation {
    /// The next event; none after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        let event = match self.events.recv().await {
            Some(event) => event,
            // Whoever would have sent the last event is gone.
            None => Event::Failed(how(self.end.clone()).await),
        };
        self.over = matches!(event, Event::Ended(_) | Event::Embedding(_) | Event::Failed(_));
        Some(event)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.over {
            // Without a scheduler there is nothing left to cancel.
            self.commands.send(Command::Cancel { sequence: self.sequence }).ok();
        }
    }
}
