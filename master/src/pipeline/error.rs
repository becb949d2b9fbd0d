//! Why a step has no answer, and who is to blame.
use super::pace::STEP_TIMEOUT;

/// Why a step has no answer.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A stage says that it could not do it.
    #[error("worker {worker:?} could not do its layers: {message}")]
    Stage {
        /// The worker.
        worker: String,
        /// What it said.
        message: String,
    },
    /// The connection to a worker is gone.
    #[error("lost worker {worker:?}: {reason}")]
    Lost {
        /// The worker.
        worker: String,
        /// How its stream ended.
        reason: String,
    },
    /// A worker said what no worker may say.
    #[error("worker {worker:?} answered what cannot be: {reason}")]
    Malformed {
        /// The worker.
        worker: String,
        /// What was wrong with it, and what was expected.
        reason: String,
    },
    /// A stage made something else than numbers.
    #[error("the stage of {worker:?} made no numbers: {reason}")]
    NotFinite {
        /// The worker, or the master itself.
        worker: String,
        /// What it made.
        reason: String,
    },
    /// A step went in and does not come out.
    #[error("worker {worker:?} keeps a step to itself: {reason}")]
    Swallowed {
        /// The worker.
        worker: String,
        /// Where it was seen last.
        reason: String,
    },
    /// Nothing comes through any more between two workers, each of which the master reaches.
    #[error("lost worker {to:?} for {from:?}: {reason}")]
    Hop {
        /// The stage before.
        from: String,
        /// The stage after it.
        to: String,
        /// What was seen of that.
        reason: String,
    },
    /// Nothing came back.
    #[error("no answer from the pipeline for {} s", STEP_TIMEOUT.as_secs())]
    Silent,
    /// The pipeline has ended.
    #[error("the pipeline is closed")]
    Closed,
}

impl Error {
    /// Whether the same steps may succeed over another pipeline.
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::Stage { .. })
    }

    /// Without whom the pipeline cannot go on, if it is one: a worker, or the master itself.
    pub fn worker(&self) -> Option<&str> {
        match self {
            Self::Stage { worker, .. }
            | Self::Lost { worker, .. }
            | Self::Malformed { worker, .. }
            | Self::NotFinite { worker, .. }
            | Self::Swallowed { worker, .. }
            | Self::Hop { to: worker, .. } => Some(worker),
            Self::Silent | Self::Closed => None,
        }
    }
}
