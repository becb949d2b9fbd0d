//! What another worker would change: asked by people, answered beside the work by whoever keeps the service.
use std::time::Duration;

use cake_checkpoint::LayerRange;
use serde::Serialize;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::planner::Plan;

/// Most questions that wait: people ask one after the other.
const WAITING: usize = 4;
/// How long an answer may take: a plan for many workers takes a while, and it is not made during a loss.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why there is no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Nobody has time for it.
    #[error("layers are on their way, so that nobody can plan: ask again in a moment")]
    Busy,
    /// There is no plan with it.
    #[error("no plan can be made: {0}")]
    Refused(String),
}

/// A worker that does not exist.
pub(crate) struct Wonder {
    /// What it would be called.
    pub name: String,
    /// Bytes that it would offer.
    pub bytes: u64,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Foreseen, Error>>,
}

/// The plan with one more worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Foreseen {
    /// Whether it would have layers.
    pub used: bool,
    /// How fast it is now, as predicted.
    pub before: Speed,
    /// And then.
    pub after: Speed,
    /// The stages then, in chain order.
    pub stages: Vec<Stage>,
}

/// How fast answers are predicted to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Seconds that a token of an answer takes that is alone.
    pub alone_seconds: f64,
    /// Seconds between two tokens, of whichever answers, where there are as many as there is room for.
    pub together_seconds: f64,
}

impl Speed {
    /// What a plan promises.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { alone_seconds: plan.step_seconds, together_seconds: plan.cost_seconds }
    }
}

/// A device with its layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// Its name.
    pub device: String,
    /// Its layers.
    pub layers: LayerRange,
}

/// Questions on their way to whoever plans.
#[derive(Debug)]
pub(crate) struct Questions {
    ask: mpsc::Sender<Wonder>,
    asked: Mutex<mpsc::Receiver<Wonder>>,
}

impl Default for Questions {
    fn default() -> Self {
        let (ask, asked) = mpsc::channel(WAITING);
        Self { ask, asked: Mutex::new(asked) }
    }
}

impl Questions {
    /// What a worker of this name with so many bytes would change.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) async fn ask(&self, name: String, bytes: u64) -> Result<Foreseen, Error> {
        let (answer, told) = oneshot::channel();
        self.ask.try_send(Wonder { name, bytes, answer }).map_err(|_| Error::Busy)?;
        let told = tokio::time::timeout(PATIENCE, told).await;
        told.ok().and_then(Result::ok).unwrap_or(Err(Error::Busy))
    }

    /// The next question that somebody waits for. May be dropped at any time.
    pub(crate) async fn next(&self) -> Wonder {
        let mut asked = self.asked.lock().await;
        loop {
            match asked.recv().await {
                Some(wonder) if wonder.answer.is_closed() => {}
                Some(wonder) => return wonder,
                None => std::future::pending().await, // Not while this is there, which has the other end.
            }
        }
    }
}

impl std::fmt::Debug for Wonder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_is_answered_or_hears_that_nobody_has_time() {
        let questions = Questions::default();
        let speed = Speed { alone_seconds: 1.0, together_seconds: 0.5 };
        let foreseen = Foreseen { used: false, before: speed, after: speed, stages: Vec::new() };
        let answers = async {
            let Wonder { name, bytes, answer } = questions.next().await;
            assert_eq!((&*name, bytes), ("phone", 7));
            answer.send(Ok(foreseen.clone())).expect("somebody waits");
        };
        let (told, ()) = tokio::join!(questions.ask("phone".to_owned(), 7), answers);
        assert_eq!(told, Ok(foreseen));
        assert_eq!(questions.ask("phone".to_owned(), 7).await, Err(Error::Busy), "nobody answers");
        let lost = tokio::time::timeout(PATIENCE, questions.next()).await;
        assert!(lost.is_err(), "who asked is gone");
    }
}
