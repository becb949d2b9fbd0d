//! Facts about a plan and its push, for whoever tells people of them.
use std::path::PathBuf;

use cake_checkpoint::Scheme;
use serde::Serialize;

use crate::distributor::Pushed;
use crate::planner::{Idle, Plan};

/// What is to be expected of a plan.
#[derive(Debug)]
pub(crate) struct Outlook<'a> {
    /// Who holds what.
    pub plan: &'a Plan,
    /// Who is there and has no layers, and why.
    pub idle: &'a [Idle],
    /// What weights are turned into.
    pub encoding: Scheme,
    /// Stored bytes of embedding, final norm and head, which stay with the master.
    pub ends_bytes: u64,
    /// Tokens of context planned for.
    pub context: usize,
    /// Sequences planned for.
    pub parallel: usize,
    /// Layers of the model, if what the plan calls layers are parts of these.
    pub parts_of: Option<usize>,
    /// What each worker lacks, if it lacks something, in chain order.
    pub pushes: Vec<PushAhead<'a>>,
}

/// What one worker lacks.
#[derive(Debug)]
pub(crate) struct PushAhead<'a> {
    /// Its name.
    pub device: &'a str,
    /// Blob bytes that it is not known to hold.
    pub missing_bytes: u64,
    /// How long sending them may take, if that is known.
    pub seconds: Option<f64>,
    /// Bytes of disk free there.
    pub free_disk_bytes: u64,
}

/// How a push went, for reports.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PushReport {
    /// One for each worker of the plan.
    pub workers: Vec<Pushed>,
    /// Blob bytes sent.
    pub pushed_bytes: u64,
    /// Blob bytes that were there already.
    pub reused_bytes: u64,
    /// Wall time.
    pub seconds: f64,
}

impl PushReport {
    /// Counts a second push, of blobs that the first one took for whole.
    pub(crate) fn repair(&mut self, second: &Self) {
        self.pushed_bytes += second.pushed_bytes;
        self.reused_bytes = self.reused_bytes.saturating_sub(second.pushed_bytes);
        self.seconds += second.seconds;
        for (worker, again) in self.workers.iter_mut().zip(&second.workers) {
            worker.pushed_bytes += again.pushed_bytes;
            worker.reused_bytes = worker.reused_bytes.saturating_sub(again.pushed_bytes);
        }
    }
}

/// Copies of blobs for losses that may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Bytes pushed for them now.
    pub pushed_bytes: u64,
    /// Workers whose loss would push nothing.
    pub covered: usize,
    /// Workers with layers.
    pub of: usize,
}

/// What people should know of whom a plan is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A member that joined is not used; who it is, and why.
    Without(String),
    /// There are no workers, though nobody asked for that.
    Alone {
        /// Whether workers could join this master.
        has_authority: bool,
    },
    /// Of so many of the model's files only the headers are there.
    Hollow {
        /// One of them.
        file: PathBuf,
        /// How many.
        count: usize,
    },
}
