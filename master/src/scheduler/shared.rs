//! What a scheduler's handles share with its task, and what they tell it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tracing::Span;

use super::request::{Event, Limits, Load, Refusal, Request};
use crate::chunk::Chunk;
use crate::metrics::Metrics;
use crate::pipeline::Pipeline;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) vocab_size: usize,
    pub(super) next_sequence: AtomicU64,
    /// Sequences that wait or run, each with a place.
    pub(super) taken: AtomicUsize,
    pub(super) load: Mutex<Load>,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Debug)]
pub(super) enum Command {
    Begin {
        sequence: u64,
        request: Request,
        events: mpsc::UnboundedSender<Event>,
        since: Instant,
        span: Span,
    },
    Cancel {
        sequence: u64,
    },
    /// Whoever asks is told when the pipeline's memory is free.
    Suspend(oneshot::Sender<()>),
    Resume(Box<Resumed>),
    GiveUp(String),
    /// The task panics, as it would at a mistake of ours.
    #[cfg(test)]
    Panic,
}

/// Stages that take the place of others.
#[derive(Debug)]
pub(super) struct Resumed {
    pub(super) pipeline: Pipeline,
    pub(super) chunk: Chunk,
    pub(super) prompt_rows: usize,
}

impl Shared {
    /// Takes places for so many sequences, for all or for none.
    pub(super) fn take(&self, count: usize) -> Result<(), Refusal> {
        let Limits { queue, parallel, .. } = self.limits;
        let most = queue.saturating_add(parallel);
        if count > most {
            return Err(Refusal::TooMany { answers: count, most });
        }
        // Short sequences run beyond what is promised, and take no place from those that wait.
        let running = self.load().running.max(parallel);
        let most = queue.saturating_add(running);
        let more = |taken: usize| (taken <= most - count).then_some(taken + count);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let busy = |taken: usize| Refusal::Busy { waiting: taken.saturating_sub(running) };
        taken.map(drop).map_err(busy)
    }

    pub(super) fn give_back(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> MutexGuard<'_, Load> {
        // Written as a whole: a poisoned lock holds what was true before.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
