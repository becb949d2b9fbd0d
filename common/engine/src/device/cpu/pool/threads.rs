//! A pool of threads, and the sections that they share.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::handover::Handover;
use super::processors::{self, Kept};
use super::stretches;
use super::upcoming::{Prefetched, Upcoming};
use crate::error::Error;

/// How long a helper waits for the next section awake. The serial work between two sections of a
/// step takes some ten microseconds; waking a helper that sleeps was measured to cost the caller
/// 7 µs for the system call, and the helper comes about 30 µs late. Waiting longer than a few
/// times that is not worth the processor.
const PATIENCE: Duration = Duration::from_micros(100);
/// How long of that without offering the processor to others: most sections follow sooner.
const KEEN: Duration = Duration::from_micros(30);
/// Looks at the counter between two looks at the clock: about a microsecond.
const LOOKS: usize = 32;

/// Threads that share the work of whoever calls [`Pool::install`].
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// The processors that its threads keep to, if not all.
    kept: Option<Arc<[usize]>>,
    helpers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool for work on `threads` threads, the caller's among them; 0 for as many as
    /// [`processors::default_threads`]. Where processors differ, they keep to the fast ones.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses a thread.
    pub(crate) fn new(threads: usize) -> Result<Pool, Error> {
        let threads = match threads {
            0 => processors::default_threads(),
            _ => threads,
        };
        let kept = processors::kept_by(threads).map(Arc::from);
        Pool::keeping_to(kept, threads)
    }

    fn keeping_to(kept: Option<Arc<[usize]>>, threads: usize) -> Result<Pool, Error> {
        let shared = Arc::new(Shared::new(threads));
        let mut pool = Pool { shared, kept, helpers: Vec::new() };
        for index in 1..threads {
            let (shared, kept) = (pool.shared.clone(), pool.kept.clone());
            let helper = std::thread::Builder::new()
                .name(format!("cake-math-{index}"))
                .spawn(move || {
                    stretches::set_index(index);
                    let _kept = kept.map(|processors| Kept::to(&processors));
                    shared.help();
                })
                .map_err(|source| Error::Threads { threads, source })?;
            pool.helpers.push(helper);
        }
        Ok(pool)
    }

    /// Runs `work` on this thread with the pool as its current one, whose helpers are awake
    /// meanwhile.
    pub(crate) fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        // For as long as it computes: who calls has other work to do, on threads it starts too.
        let _kept = self.kept.as_deref().map(Kept::to);
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
        self.shared.handover.wake();
        let _step = Step(&self.shared);
        let _current = Current::set(Some(self.shared.clone()));
        work()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.handover.stop();
        for helper in self.helpers.drain(..) {
            // A helper catches what its tasks raise and has nothing else that could fail.
            let _ = helper.join();
        }
    }
}

/// Threads that [`for_each`] would use here: 1 without a current pool and inside a task.
pub(crate) fn current_threads() -> usize {
    let current = Current::set(None);
    current.0.as_ref().map_or(1, |shared| shared.threads)
}

/// Says what the section after the next one reads, piece after piece, in stretches of neighbouring bytes
/// for its threads: those of the current pool prefetch it while they wait for each other.
pub(crate) fn expect(pieces: &[&[u8]]) {
    let current = Current::set(None);
    if let Some(shared) = &current.0 {
        shared.upcoming.set(pieces);
    }
}

/// Calls `run` with each of `0..tasks`, on the threads of the current pool, and returns when all
/// are done. Without a current pool, and inside a task, everything runs here.
///
/// # Panics
/// If a task does, with what it raised, once the others are done.
pub(crate) fn for_each(tasks: usize, run: impl Fn(usize) + Sync) {
    if tasks < 2 {
        return (0..tasks).for_each(run);
    }
    let current = Current::set(None); // So that tasks have no pool.
    match &current.0 {
        Some(shared) if shared.threads > 1 => shared.section(tasks, &run),
        _ => (0..tasks).for_each(run),
    }
}

/// [`for_each`] with one task for each of `items`: `run(index, item)`.
pub(crate) fn for_each_mut<T: Send>(items: &mut [T], run: impl Fn(usize, &mut T) + Sync) {
    let items: Vec<Mutex<&mut T>> = items.iter_mut().map(Mutex::new).collect();
    for_each(items.len(), |index| run(index, &mut lock(&items[index])));
}

thread_local! {
    /// The pool that sections of this thread run on.
    static CURRENT: Cell<Option<Arc<Shared>>> = const { Cell::new(None) };
}

/// What was current before; it is again when this is dropped.
struct Current(Option<Arc<Shared>>);

impl Current {
    fn set(shared: Option<Arc<Shared>>) -> Current {
        Current(CURRENT.replace(shared))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Counts one step less when dropped.
struct Step<'a>(&'a Shared);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.steps.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the threads of a pool see.
struct Shared {
    /// Helpers and a caller.
    threads: usize,
    /// The tasks of the open section, and who sleeps.
    handover: Handover,
    /// What the section after this one reads.
    upcoming: Upcoming,
    /// Calls of `install` that are running: helpers stay awake for none but these.
    steps: AtomicUsize,
}

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            threads,
            handover: Handover::new(),
            upcoming: Upcoming::new(threads),
            steps: AtomicUsize::new(0),
        }
    }

    /// Runs a section on all threads; on this one alone while the helpers are in one of another.
    fn section(&self, tasks: usize, run: &(impl Fn(usize) + Sync)) {
        let Some(open) = self.handover.open() else {
            return (0..tasks).for_each(run);
        };
        let raised = Mutex::new(None); // What the first failing task raised.
        let caught = |task| {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(task))) {
                lock(&raised).get_or_insert(payload);
            }
        };
        let mut prefetched = Prefetched::default();
        let wait = || {
            // Awake: what is left is a task's time at most.
            if !spin(KEEN, || self.handover.is_over(), || self.upcoming.prefetch(&mut prefetched)) {
                std::thread::yield_now(); // A helper may have lost its processor to this thread.
            }
        };
        // SAFETY: what a task raises is caught; to wait is to look at counters and the clock.
        unsafe { open.run(tasks, &caught, wait) };
        drop(open);
        if let Some(raised) = raised.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(raised);
        }
    }

    /// What a helper does from its start to its end.
    fn help(&self) {
        let mut prefetched = Prefetched::default();
        loop {
            let begin = Instant::now();
            while !self.handover.take_part() {
                let idle = || self.steps.load(Ordering::Relaxed) == 0;
                let called = || self.handover.is_called();
                let waited = begin.elapsed();
                if waited < KEEN {
                    spin(
                        KEEN - waited,
                        || called() || idle(),
                        || self.upcoming.prefetch(&mut prefetched),
                    );
                }
                if called() {
                    continue;
                }
                if idle() || waited >= PATIENCE {
                    match self.handover.sleep() {
                        true => break,
                        false => return,
                    }
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Waits awake until `ready`, for about `time`, and does `meanwhile` for as long as that says that there
/// is more of it; returns whether it is ready.
fn spin(time: Duration, ready: impl Fn() -> bool, mut meanwhile: impl FnMut() -> bool) -> bool {
    let mut begin = None; // Mostly it is ready before the clock matters.
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            if !meanwhile() {
                std::hint::spin_loop();
            }
        }
        if begin.get_or_insert_with(Instant::now).elapsed() >= time {
            return false;
        }
    }
}

/// The lock, whoever failed while holding it: what it guards is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
