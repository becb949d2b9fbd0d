//! Counters of a push in progress, read by whoever draws them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counters of all workers, in the order of the assignments.
#[derive(Debug)]
pub struct Progress {
    /// One for each worker.
    pub workers: Vec<Arc<WorkerProgress>>,
}

/// Counters of one worker. Relaxed: they are only shown.
#[derive(Debug)]
pub struct WorkerProgress {
    /// Worker name.
    pub name: String,
    /// Blob bytes that it must hold in the end.
    pub total_bytes: u64,
    sent: AtomicU64,
    reused: AtomicU64,
    finished: AtomicBool,
}

impl WorkerProgress {
    /// Nothing sent yet.
    pub fn new(name: &str, total_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            total_bytes,
            sent: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            finished: AtomicBool::new(false),
        })
    }

    /// Bytes handed to the connection so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes that did not need sending so far.
    pub fn reused(&self) -> u64 {
        self.reused.load(Ordering::Relaxed)
    }

    /// Whether all its blobs are stored.
    pub fn finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    pub(super) fn send(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn reuse(&self, bytes: u64) {
        self.reused.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }
}
