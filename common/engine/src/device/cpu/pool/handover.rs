//! How the tasks of a section get from the thread that opens it to its helpers, and how these sleep.
//!
//! A section from its opening to its end, and why a helper never sees a section that is over:
//!
//! ```text
//! caller   section = S; unfinished = n;  waiting = n ─┐ release
//! anyone                 waiting: k > 0 → k - 1 ◀─────┘ acquire: task n - k of S is mine
//!                        runs it, claims on until none waits
//!                        unfinished -= tasks done ────┐ release
//! caller                 unfinished == 0 ◀────────────┘ acquire: S may go, the next may be opened
//! ```
//!
//! All changes of `waiting` after the caller's store are read-modify-writes, so a claim at any of
//! them acquires what the store released; likewise for `unfinished` the other way. `waiting` is
//! above zero only while a section is open, whose claimed tasks keep it open: a helper that
//! looked at `waiting` in one section and succeeds in another has a task of that other one, and
//! reads `section` only then.
//!
//! Nothing here knows of clocks, of other threads' work or of what tasks raise; `model` checks all of it.

use std::sync::PoisonError;

use super::sync::in_one_order;
use super::sync::{AtomicBool, AtomicPtr, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// What the threads of a pool hand tasks over by.
pub(super) struct Handover {
    /// The open section, valid while it has unfinished tasks.
    section: AtomicPtr<Section<'static>>,
    /// Tasks of the open section that nobody has claimed.
    waiting: AtomicUsize,
    /// Tasks of the open section that are not done, or whose end is not yet reported.
    unfinished: AtomicUsize,
    /// Whether a section is open.
    busy: AtomicBool,
    /// Helpers that sleep, or hold `sleep` to do so.
    sleepers: AtomicUsize,
    sleep: Mutex<Sleep>,
    wakes: Condvar,
}

/// What sleeping helpers wait for.
#[derive(Default)]
struct Sleep {
    /// Times that all were woken.
    wakes: u64,
    /// Whether helpers are to end.
    stop: bool,
}

/// Tasks to share out.
struct Section<'a> {
    run: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
}

/// The right to have a section, which one thread has at a time.
pub(super) struct Open<'a>(&'a Handover);

impl Handover {
    /// No section, and nobody asleep.
    pub(super) fn new() -> Handover {
        Handover {
            section: AtomicPtr::new(std::ptr::null_mut()),
            waiting: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(Sleep::default()),
            wakes: Condvar::new(),
        }
    }

    /// The right to have a section, unless somebody has one.
    pub(super) fn open(&self) -> Option<Open<'_>> {
        (!self.busy.swap(true, Ordering::Acquire)).then(|| Open(self))
    }

    /// Runs tasks of the open section until none waits; returns whether there was one.
    pub(super) fn take_part(&self) -> bool {
        let one_less = |waiting: usize| waiting.checked_sub(1);
        let mut done = 0;
        while let Ok(waiting) =
            self.waiting.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less)
        {
            // SAFETY: a task was claimed, so the pointer is that of the open section, whose caller
            // keeps it alive in `Open::run` until the task is counted as finished below.
            let section = unsafe { &*self.section.load(Ordering::Relaxed) };
            (section.run)(section.tasks - waiting);
            done += 1;
        }
        if done > 0 {
            self.unfinished.fetch_sub(done, Ordering::Release);
        }
        done > 0
    }

    /// Whether a task waits to be claimed, as far as this thread has heard.
    pub(super) fn is_called(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether all tasks of the open section are done.
    pub(super) fn is_over(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Sleeps until woken; returns whether to go on.
    pub(super) fn sleep(&self) -> bool {
        let mut sleep = lock(&self.sleep);
        // Either the opener of a section sees the sleeper or the sleeper sees the section, since
        // both write first and read then, in one order for all.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        in_one_order();
        let wakes = sleep.wakes;
        while self.waiting.load(Ordering::SeqCst) == 0 && sleep.wakes == wakes && !sleep.stop {
            sleep = self.wakes.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        !sleep.stop
    }

    /// Wakes the helpers that sleep.
    pub(super) fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            lock(&self.sleep).wakes += 1;
            self.wakes.notify_all();
        }
    }

    /// Has helpers end that would sleep, or do.
    pub(super) fn stop(&self) {
        lock(&self.sleep).stop = true;
        self.wakes.notify_all();
    }
}

impl Open<'_> {
    /// Runs `run` with each of `0..tasks` here and on whichever helpers come, and returns when all are done.
    /// Calls `wait`, which may return at any time, while others are at the last of them.
    ///
    /// # Safety
    /// Neither `run` nor `wait` unwinds: others may still be at tasks of a section that is then no more.
    pub(super) unsafe fn run(
        &self,
        tasks: usize,
        run: &(dyn Fn(usize) + Sync),
        mut wait: impl FnMut(),
    ) {
        let Open(handover) = self;
        let section = Section { run, tasks };
        let erased = std::ptr::from_ref(&section).cast::<Section<'static>>().cast_mut();
        handover.section.store(erased, Ordering::Relaxed);
        handover.unfinished.store(tasks, Ordering::Relaxed);
        handover.waiting.store(tasks, Ordering::SeqCst);
        in_one_order();
        handover.wake();
        handover.take_part();
        while !handover.is_over() {
            wait();
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// The lock, whoever failed while holding it: what it guards is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
