//! The hand-over in every order that its threads may take turns in, as far as some preemptions go, and with every
//! value that the memory model lets a load see: the very code, on loom's atomics, locks and cells.
//!
//! A task that runs twice or late, a result that the caller may not see and two threads at one place at a time are
//! races of cells to loom; a helper that is not woken is a deadlock.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

/// The names that the hand-over takes from its neighbour.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Loom takes sequentially consistent accesses for acquiring and releasing ones.
    pub(super) fn in_one_order() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[allow(clippy::duplicate_mod, reason = "the same code with other primitives")]
#[path = "handover.rs"]
mod handover;

use handover::Handover;

/// Runs `scenario` in all orders with at most so many preemptions: what goes wrong does so with few.
fn check(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

/// Numbers that tasks write without synchronisation of their own.
struct Cells([UnsafeCell<usize>; 2]);

// SAFETY: loom fails where two threads are at one of them at a time.
unsafe impl Sync for Cells {}
// SAFETY: as above.
unsafe impl Send for Cells {}

impl Cells {
    fn new() -> Cells {
        Cells([0, 0].map(UnsafeCell::new))
    }

    fn add(&self, index: usize) {
        // SAFETY: loom sees to it that nobody else is at it.
        self.0[index].with_mut(|number| unsafe { *number += 1 });
    }

    fn all(&self) -> [usize; 2] {
        // SAFETY: as above.
        [0, 1].map(|index| self.0[index].with(|number| unsafe { *number }))
    }
}

/// What a helper does, without patience.
fn help(handover: &Handover) {
    while handover.take_part() || handover.sleep() {}
}

/// A section of two tasks that add one each.
fn section(handover: &Handover, cells: &Cells) {
    let run = |task| cells.add(task);
    match handover.open() {
        // SAFETY: a failed check ends the process's test, whatever is left of the section.
        Some(open) => unsafe { open.run(2, &run, thread::yield_now) },
        None => (0..2).for_each(run),
    }
}

/// Sections, one after the other.
fn sections(handover: &Handover, count: usize) {
    let cells = Cells::new();
    for sections in 1..=count {
        section(handover, &cells);
        assert_eq!(cells.all(), [sections; 2]);
    }
}

#[test]
fn every_task_runs_once_and_the_caller_sees_what_it_did() {
    check(3, || {
        let handover = Arc::new(Handover::new());
        let helper = thread::spawn({
            let handover = handover.clone();
            move || help(&handover)
        });
        let cells = Cells::new();
        for sections in 1..=2 {
            section(&handover, &cells);
            assert_eq!(cells.all(), [sections; 2]);
            assert!(!handover.is_called());
        }
        handover.stop();
        helper.join().unwrap();
    });
}

#[test]
fn a_helper_that_is_needed_comes_whether_or_not_it_slept() {
    check(3, || {
        let handover = Arc::new(Handover::new());
        let helper = thread::spawn({
            let handover = handover.clone();
            move || help(&handover)
        });
        // Passed only by two threads: one that nobody woke would be waited for without an end.
        let (here, came) = (sync::Mutex::new(0), sync::Condvar::new());
        let run = |_| {
            let mut here = here.lock().unwrap();
            *here += 1;
            came.notify_all();
            while *here < 2 {
                here = came.wait(here).unwrap();
            }
        };
        let open = handover.open().unwrap();
        // SAFETY: nothing here unwinds.
        unsafe { open.run(2, &run, thread::yield_now) };
        drop(open);
        handover.stop();
        helper.join().unwrap();
    });
}

#[test]
fn of_two_callers_one_has_the_helper_and_both_get_their_tasks_done() {
    check(2, || {
        let handover = Arc::new(Handover::new());
        let helper = thread::spawn({
            let handover = handover.clone();
            move || help(&handover)
        });
        let other = thread::spawn({
            let handover = handover.clone();
            move || sections(&handover, 1)
        });
        sections(&handover, 2);
        other.join().unwrap();
        handover.stop();
        helper.join().unwrap();
    });
}
