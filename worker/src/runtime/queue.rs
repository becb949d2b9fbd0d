//! Steps that wait for the thread that computes, and how that thread ends.
//!
//! ```text
//! streams ──place──▶ a bounded queue ──take──▶ the stage's thread
//! whoever unloads:   end ──▶ join
//! ```
//!
//! The thread takes nothing any more once the queue has ended or was stopped, whatever waits still. A stream that waits
//! for room has a place of its own in the queue: it gets the room, or hears that nobody takes anything any more, so
//! that whoever joins the thread waits for no stream, and no stream for it. `model` checks that.

use std::sync::Arc;

use super::sync::{AtomicBool, Ordering, Receiver, Sender, channel};

/// The queue's beginning, as the loaded stage keeps it.
#[derive(Debug)]
pub(super) struct StepQueue<J> {
    jobs: Sender<J>,
    stopping: Arc<AtomicBool>,
}

/// The queue's end, as the thread has it.
#[derive(Debug)]
pub(super) struct Turns<J> {
    jobs: Receiver<J>,
    stopping: Arc<AtomicBool>,
}

/// A queue with room for so many.
pub(super) fn step_queue<J>(room: usize) -> (StepQueue<J>, Turns<J>) {
    let (jobs, received) = channel(room);
    let stopping = Arc::new(AtomicBool::new(false));
    (StepQueue { jobs, stopping: stopping.clone() }, Turns { jobs: received, stopping })
}

impl<J> StepQueue<J> {
    /// A place to send from.
    pub(super) fn place(&self) -> Sender<J> {
        self.jobs.clone()
    }

    /// Lets the thread take nothing more.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Stops the thread, also if nothing comes any more.
    pub(super) fn end(self) {
        self.stop();
    }
}

impl<J> Turns<J> {
    /// The next one; none once the queue has ended or was stopped. Waits for it: call from a thread that may block.
    pub(super) fn take(&mut self) -> Option<J> {
        // Nobody waits for what is queued when the queue is stopped.
        self.jobs.blocking_recv().filter(|_| !self.stopping.load(Ordering::Relaxed))
    }
}
