//! How far a stage is, for a master that misses an answer.
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Counts what comes to a stage and what leaves it.
#[derive(Debug, Default)]
pub struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    report: Report,
    since: Option<Instant>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames of steps that came.
    pub frames: u64,
    /// Number of the last step that came whole.
    pub received: u64,
    /// How many did.
    pub received_count: u64,
    /// The step that is computed or on its way out; 0 if none.
    pub at_work: u64,
    /// Since when.
    pub at_work_for: Duration,
    /// Whether it is on its way out.
    pub leaving: bool,
    /// Number of the last step that left.
    pub sent: u64,
    /// How many did.
    pub sent_count: u64,
}

impl Progress {
    /// A part of a step came.
    pub fn frame(&self) {
        self.lock().report.frames += 1;
    }

    /// A step came whole.
    pub fn received(&self, step: u64) {
        let report = &mut self.lock().report;
        report.received = step;
        report.received_count += 1;
    }

    /// It is computed from now on.
    pub fn begun(&self, step: u64) {
        let mut state = self.lock();
        state.since = Some(Instant::now());
        (state.report.at_work, state.report.leaving) = (step, false);
    }

    /// It is computed, and has to leave.
    pub fn computed(&self) {
        let mut state = self.lock();
        state.since = Some(Instant::now());
        state.report.leaving = true;
    }

    /// It is in the hands of its link.
    pub fn sent(&self, step: u64) {
        let mut state = self.lock();
        state.report.sent = step;
        state.report.sent_count += 1;
        state.report.at_work = 0;
    }

    /// Nothing came of it, and that was said.
    pub fn failed(&self) {
        self.lock().report.at_work = 0;
    }

    /// How far it is now.
    pub fn report(&self) -> Report {
        let state = self.lock();
        let since = state.since.filter(|_| state.report.at_work > 0);
        Report { at_work_for: since.map_or(Duration::ZERO, |at| at.elapsed()), ..state.report }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Critical sections only assign: a poisoned lock still holds a whole value.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_seen_to_come_to_be_computed_and_to_leave() {
        let progress = Progress::default();
        progress.frame();
        progress.frame();
        progress.received(7);
        progress.begun(7);
        let report = progress.report();
        assert_eq!((report.frames, report.received, report.received_count), (2, 7, 1));
        assert_eq!((report.at_work, report.leaving, report.sent), (7, false, 0));
        progress.computed();
        assert!(progress.report().leaving);
        progress.sent(7);
        let report = progress.report();
        assert_eq!((report.at_work, report.sent, report.sent_count), (0, 7, 1));
        assert_eq!(report.at_work_for, Duration::ZERO);
        progress.begun(8);
        progress.failed();
        assert_eq!(progress.report().at_work, 0);
    }
}
