//! Threads for the arithmetic: short sections of tasks, thousands of them in a second.
//!
//! A step of the model is a chain of sections, each some ten or hundred microseconds of work for
//! all threads, with a few microseconds of serial work between them. So helpers wait for the next
//! section awake, for a bounded time, and sleep between steps, when the processors belong to the
//! threads that move bytes. Nobody waits for a helper that has not begun: the caller takes part,
//! and a section is over when the tasks that were handed out are done. Who waits awake asks memory for
//! what comes next ([`expect`]), so that it never rests.

mod stretches;
mod tasks;
mod upcoming;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::processors::{self, Kept};
use crate::reuse;
pub(crate) use tasks::{Tasks, run_all};
use upcoming::{Asked, Upcoming};

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
        self.shared.wake();
        let (_step, _reused) = (Step(&self.shared), reuse::Step::begin());
        let _current = Current::set(Some(self.shared.clone()));
        work()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.sleep).stop = true;
        self.shared.wakes.notify_all();
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
/// for its threads: those of the current pool ask memory for it while they wait for each other.
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
///
/// A section from its opening to its end, and why a helper never sees a section that is over:
///
/// ```text
/// caller   section = S; unfinished = n;  waiting = n ─┐ release
/// anyone                 waiting: k > 0 → k - 1 ◀─────┘ acquire: task n - k of S is mine
///                        runs it, claims on until none waits
///                        unfinished -= tasks done ────┐ release
/// caller                 unfinished == 0 ◀────────────┘ acquire: S may go, the next may be opened
/// ```
///
/// All changes of `waiting` after the caller's store are read-modify-writes, so a claim at any of
/// them acquires what the store released; likewise for `unfinished` the other way. `waiting` is
/// above zero only while a section is open, whose claimed tasks keep it open: a helper that
/// looked at `waiting` in one section and succeeds in another has a task of that other one, and
/// reads `section` only then.
struct Shared {
    /// Helpers and a caller.
    threads: usize,
    /// The open section, valid while it has unfinished tasks.
    section: AtomicPtr<Section<'static>>,
    /// Tasks of the open section that nobody has claimed.
    waiting: AtomicUsize,
    /// Tasks of the open section that are not done, or whose end is not yet reported.
    unfinished: AtomicUsize,
    /// Whether a section is open.
    busy: AtomicBool,
    /// What the section after this one reads.
    upcoming: Upcoming,
    /// What the first failing task of the section raised.
    raised: Mutex<Option<Box<dyn Any + Send>>>,
    /// Calls of `install` that are running: helpers stay awake for none but these.
    steps: AtomicUsize,
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

impl Shared {
    fn new(threads: usize) -> Shared {
        Shared {
            threads,
            section: AtomicPtr::default(),
            waiting: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            upcoming: Upcoming::new(threads),
            raised: Mutex::default(),
            steps: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::default(),
            wakes: Condvar::new(),
        }
    }

    /// Runs a section on all threads; on this one alone while the helpers are in one of another.
    fn section(&self, tasks: usize, run: &(dyn Fn(usize) + Sync)) {
        if self.busy.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(run);
        }
        let section = Section { run, tasks };
        let erased = std::ptr::from_ref(&section).cast::<Section<'static>>().cast_mut();
        self.section.store(erased, Ordering::Relaxed);
        self.unfinished.store(tasks, Ordering::Relaxed);
        self.waiting.store(tasks, Ordering::SeqCst);
        self.wake();
        // Neither of these unwinds, so `section` outlives its last task.
        self.take_part();
        self.await_helpers();
        let raised = lock(&self.raised).take();
        self.busy.store(false, Ordering::Release);
        if let Some(raised) = raised {
            resume_unwind(raised);
        }
    }

    /// Runs tasks of the open section until none waits; returns whether there was one.
    fn take_part(&self) -> bool {
        let one_less = |waiting: usize| waiting.checked_sub(1);
        let mut done = 0;
        while let Ok(waiting) =
            self.waiting.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_less)
        {
            // SAFETY: a task was claimed, so the pointer is that of the open section, whose caller
            // keeps it alive in `Shared::section` until the task is counted as finished below.
            let section = unsafe { &*self.section.load(Ordering::Relaxed) };
            let task = section.tasks - waiting;
            if let Err(raised) = catch_unwind(AssertUnwindSafe(|| (section.run)(task))) {
                lock(&self.raised).get_or_insert(raised);
            }
            done += 1;
        }
        if done > 0 {
            self.unfinished.fetch_sub(done, Ordering::Release);
        }
        done > 0
    }

    /// Waits until all tasks are done. Awake: what is left is a task's time at most.
    fn await_helpers(&self) {
        let done = || self.unfinished.load(Ordering::Acquire) == 0;
        let mut asked = Asked::default();
        while !spin(KEEN, done, || self.upcoming.ask(&mut asked)) {
            std::thread::yield_now(); // A helper may have lost its processor to this thread.
        }
    }

    /// What a helper does from its start to its end.
    fn help(&self) {
        let mut asked = Asked::default();
        loop {
            let begin = Instant::now();
            while !self.take_part() {
                let idle = || self.steps.load(Ordering::Relaxed) == 0;
                let called = || self.waiting.load(Ordering::Relaxed) > 0;
                let waited = begin.elapsed();
                if waited < KEEN {
                    spin(KEEN - waited, || called() || idle(), || self.upcoming.ask(&mut asked));
                }
                if called() {
                    continue;
                }
                if idle() || waited >= PATIENCE {
                    match self.sleep() {
                        true => break,
                        false => return,
                    }
                }
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until woken; returns whether to go on.
    fn sleep(&self) -> bool {
        let mut sleep = lock(&self.sleep);
        // Either the opener of a section sees the sleeper or the sleeper sees the section, since
        // both write first and read then, in one order for all.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let wakes = sleep.wakes;
        while self.waiting.load(Ordering::SeqCst) == 0 && sleep.wakes == wakes && !sleep.stop {
            sleep = self.wakes.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        !sleep.stop
    }

    /// Wakes the helpers that sleep.
    fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            lock(&self.sleep).wakes += 1;
            self.wakes.notify_all();
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
