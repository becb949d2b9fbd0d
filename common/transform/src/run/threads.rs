//! The threads of a run: they take units in order, write down what each brought to its place, and bring all of it to the
//! disk every so often.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::begin::Begun;
use super::bench::Bench;
use super::journal::Journal;
use super::largest::{self, Largest};
use super::outputs::{Outputs, folder_of};
use super::units::{Pass, Units};
use super::work::work;
use crate::error::Error;
use crate::job::{Job, Observer};

/// How much is written between two times that all of it is brought to the disk: what the page cache holds of a job, and
/// what has to be looked at again when the machine itself went down.
const SYNC_BYTES: u64 = 256 << 20;

/// Brings all units that are left to their places.
///
/// # Errors
/// The first of any thread.
pub(super) fn work_off(
    job: &Job,
    units: &Units,
    journal: Journal,
    begun: Begun,
    threads: usize,
    observer: &dyn Observer,
) -> Result<(Journal, Outputs), Error> {
    let Begun { outputs, earlier, written: resumed, total } = begun;
    let left: Vec<u32> = (0..units.count()).filter(|unit| !earlier.contains_key(unit)).collect();
    let shared = Shared {
        job,
        units,
        left,
        total,
        largest: Largest::new(units, &earlier),
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        state: Mutex::new(State { journal, done: resumed, unsynced: 0, failed: None }),
        syncing: Mutex::new(()),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, shared.left.len().max(1)) {
            scope.spawn(|| {
                let largest = &shared.largest;
                shared.work(&mut Bench::new(job, &outputs, largest, observer, &shared.stop));
            });
        }
    });
    let State { journal, done, failed, .. } =
        shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failed {
        None => Ok((journal, outputs)),
        Some(Error::Stopped { .. }) => Err(Error::Stopped { done, total }),
        Some(Error::Io { cause, .. }) if is_full(&cause) => {
            let path = job.target.path();
            let free = cake_platform::free_space(folder_of(path)).map_or(0, |it| it.free_bytes);
            Err(Error::NoRoom { path: path.into(), needed: total - done, free })
        }
        Some(error) => Err(error),
    }
}

/// What the threads of a job share.
struct Shared<'a> {
    job: &'a Job,
    units: &'a Units,
    /// The units that are to be done, in order.
    left: Vec<u32>,
    /// Bytes that are in their place when all is done.
    total: u64,
    largest: Largest,
    /// Index of the next unit, among those that are left.
    next: AtomicUsize,
    stop: AtomicBool,
    state: Mutex<State>,
    syncing: Mutex<()>,
}

struct State {
    journal: Journal,
    /// Bytes that are in their place.
    done: u64,
    /// Of these, how many may not be on the disk.
    unsynced: u64,
    /// The first error.
    failed: Option<Error>,
}

impl Shared<'_> {
    /// Does units until there are no more, or somebody fails.
    fn work(&self, bench: &mut Bench<'_>) {
        let _guard = StopsOnPanic(&self.stop);
        while let Some(&unit) = self.left.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = self.unit(bench, unit) {
                self.state().failed.get_or_insert(error); // Before others stop because of it, and say so.
                self.stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    fn unit(&self, bench: &mut Bench<'_>, number: u32) -> Result<(), Error> {
        let unit = self.units.get(number);
        let text = work(bench, &unit)?;
        let bytes = self.job.places(&unit).iter().map(|(_, bytes)| bytes).sum();
        let (done, to_sync) = self.done(number, &text, bytes)?;
        if let (Pass::Look, Some(most)) = (unit.pass, largest::from_text(&text)) {
            self.largest.add(unit.piece, most);
        }
        bench.observer.progress(done, self.total);
        if to_sync { self.sync(bench.outputs) } else { Ok(()) }
    }

    /// Writes down a unit; the bytes that are there now, and whether it is time to sync.
    fn done(&self, unit: u32, text: &str, bytes: u64) -> Result<(u64, bool), Error> {
        let mut state = self.state();
        state.journal.unit(unit, text)?;
        state.done += bytes;
        state.unsynced += bytes;
        let to_sync = state.unsynced >= SYNC_BYTES;
        if to_sync {
            state.unsynced = 0; // Nobody else begins.
        }
        Ok((state.done, to_sync))
    }

    /// Brings to the disk what has been written down so far; others go on meanwhile, but for another sync: of two, one alone
    /// is told what the disk refused.
    fn sync(&self, outputs: &Outputs) -> Result<(), Error> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.state().journal.units();
        outputs.sync().inspect_err(|_| self.state().journal.refused())?;
        self.state().journal.synced(written)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it is held leaves at worst a line that was cut.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the others stop if this thread panics, as they may wait for what it was doing.
struct StopsOnPanic<'a>(&'a AtomicBool);

impl Drop for StopsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether the disk, or what somebody may have of it, is full.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
