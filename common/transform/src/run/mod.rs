//! Running a job: the one loop that all of them go through.
//!
//! Threads take units in order, so that the source is read from its beginning to its end; what each brought to its place
//! is written down, and every so often all of it is brought to the disk.

mod bench;
mod copy;
mod journal;
mod outputs;
mod rows;
#[cfg(test)]
mod tests;
mod units;
mod work;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use self::bench::Bench;
use self::journal::{Earlier, Journal, boot};
use self::outputs::{Outputs, PART, beside, check, folder_of};
use self::units::Units;
use self::work::{look, seal, work};
use crate::error::Error;
use crate::job::{Job, Observer, Options, Outcome};
use crate::piece::Piece;

/// How much is written between two times that all of it is brought to the disk: what the page cache holds of a job, and
/// what has to be looked at again when the machine itself went down.
const SYNC_BYTES: u64 = 256 << 20;
/// What the name of a journal ends in.
const JOURNAL: &str = ".part.journal";

impl Job {
    /// Writes the outputs, or what is missing of them after a run that ended early.
    ///
    /// They get their names when all is there. Until then, and also after an error, what there is has a name beside the
    /// target's that ends in `.part`.
    ///
    /// # Errors
    /// [`Error`]; after all but [`Error::Exists`], [`Error::Busy`] and [`Error::Changed`] the same job goes on where this
    /// one ended.
    pub fn run(&self, options: Options, observer: &dyn Observer) -> Result<Outcome, Error> {
        let target = self.target.path();
        let units = Units::of(self)?;
        let identity = self.identity()?;
        if let Some(outcome) = self.is_done(&identity, &units)? {
            return Ok(outcome);
        }
        check(&self.target, options.force)?;
        let mut journal = Journal::open(&beside(target, JOURNAL), target)?;
        check(&self.target, options.force)?; // Whoever held the journal may just have ended.
        let bytes = self.outputs.iter().map(|output| output.bytes).sum();
        let resumed = self.resume(&mut journal, &identity, &units, observer);
        let resumed = resumed.map_err(|error| match error {
            Error::Stopped { .. } => Error::Stopped { done: 0, total: bytes },
            error => error,
        })?;
        let (there, earlier) = match resumed {
            Some((outputs, earlier)) => (Some(outputs), earlier),
            None => (None, Earlier::default()),
        };
        let left: Vec<u32> =
            (0..units.count()).filter(|unit| !earlier.done.contains_key(unit)).collect();
        let bytes_of = |unit: u32| {
            let unit = units.get(unit);
            self.pieces[unit.piece].places(&unit.range).iter().map(|(_, bytes)| bytes).sum::<u64>()
        };
        let resumed: u64 = earlier.done.keys().map(|&unit| bytes_of(unit)).sum();
        let needed: u64 = left.iter().map(|&unit| bytes_of(unit)).sum();
        let total = resumed + needed;
        if let Err(error) = enough_room(target, needed) {
            if !journal.is_old() {
                journal.remove()?; // Nothing was begun.
            }
            return Err(error);
        }
        let outputs = match there {
            Some(outputs) => outputs,
            None => Outputs::create(self, journal.is_old())?,
        };
        journal.begin(&identity, &boot(), &earlier)?;
        observer.progress(resumed, total);

        let shared = Shared {
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            state: Mutex::new(State { journal, done: resumed, unsynced: 0, failed: None }),
        };
        std::thread::scope(|scope| {
            for _ in 0..options.threads.clamp(1, left.len().max(1)) {
                scope.spawn(|| {
                    let mut bench = Bench::new(self, &outputs, observer, &shared.stop);
                    shared.work(&mut bench, &units, &left, total, &bytes_of);
                });
            }
        });
        let State { journal, done, failed, .. } =
            shared.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match failed {
            None => {}
            Some(Error::Stopped { .. }) => return Err(Error::Stopped { done, total }),
            Some(Error::Io { cause, .. }) if is_full(&cause) => {
                let free =
                    cake_platform::free_space(folder_of(target)).map_or(0, |it| it.free_bytes);
                return Err(Error::NoRoom { path: target.into(), needed: total - done, free });
            }
            Some(error) => return Err(error),
        }
        self.seal(&outputs, observer).map_err(|error| match error {
            Error::Stopped { .. } => Error::Stopped { done, total },
            error => error,
        })?;
        let mut journal = journal;
        outputs.finish().inspect_err(|_| journal.refused())?;
        journal.remove()?;
        Ok(Outcome { bytes, resumed })
    }

    /// Whether an earlier run had finished but for its journal, which then goes.
    fn is_done(&self, identity: &str, units: &Units) -> Result<Option<Outcome>, Error> {
        let target = self.target.path();
        let path = beside(target, JOURNAL);
        if !path.exists() || !target.exists() || beside(target, PART).exists() {
            return Ok(None);
        }
        let mut journal = Journal::open(&path, target)?;
        match journal.earlier(identity, &boot())? {
            Some(earlier) if earlier.done.len() == units.count() as usize => {
                journal.remove()?;
                let bytes = self.outputs.iter().map(|output| output.bytes).sum();
                Ok(Some(Outcome { bytes, resumed: bytes }))
            }
            _ => Ok(None),
        }
    }

    /// Writes what is known when all else is there.
    fn seal(&self, outputs: &Outputs, observer: &dyn Observer) -> Result<(), Error> {
        let stop = AtomicBool::new(false);
        let mut bench = Bench::new(self, outputs, observer, &stop);
        self.pieces.iter().try_for_each(|piece| match piece {
            Piece::Checksum { place } => seal(&mut bench, *place),
            _ => Ok(()),
        })
    }

    /// What an earlier run left, if it can be gone on with.
    fn resume(
        &self,
        journal: &mut Journal,
        identity: &str,
        units: &Units,
        observer: &dyn Observer,
    ) -> Result<Option<(Outputs, Earlier)>, Error> {
        let found = journal.earlier(identity, &boot())?;
        let reopened = found.and_then(|earlier| Some((Outputs::reopen(self)?, earlier)));
        let Some((outputs, mut earlier)) = reopened else {
            return Ok(None);
        };
        earlier.done.retain(|&unit, _| unit < units.count());
        let stop = AtomicBool::new(false);
        let mut bench = Bench::new(self, &outputs, observer, &stop);
        // What may have been lost is looked at and done again; the last of the rest is looked at for whoever changed it.
        let doubtful: BTreeSet<u32> = earlier.doubtful.iter().copied().collect();
        for &unit in doubtful.iter().chain(&earlier.latest) {
            let Some(digest) = earlier.done.get(&unit) else { continue };
            bench.check()?;
            if look(&mut bench, &units.get(unit))? == *digest {
                continue;
            }
            if !doubtful.contains(&unit) {
                return Err(Error::Changed { path: outputs.part().into() });
            }
            earlier.done.remove(&unit);
        }
        drop(bench);
        Ok(Some((outputs, earlier)))
    }
}

/// What the threads of a job share.
struct Shared {
    /// Index of the next unit, among those that are left.
    next: AtomicUsize,
    stop: AtomicBool,
    state: Mutex<State>,
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

impl Shared {
    /// Does units until there are no more, or somebody fails.
    fn work(
        &self,
        bench: &mut Bench<'_>,
        units: &Units,
        left: &[u32],
        total: u64,
        bytes_of: &dyn Fn(u32) -> u64,
    ) {
        while let Some(&unit) = left.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = work(bench, &units.get(unit)).and_then(|digest| {
                let (done, to_sync) = self.done(unit, &digest, bytes_of(unit))?;
                bench.observer.progress(done, total);
                if to_sync { self.sync(bench.outputs) } else { Ok(()) }
            });
            if let Err(error) = outcome {
                self.state().failed.get_or_insert(error); // Before others stop because of it, and say so.
                self.stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Writes down a unit; the bytes that are there now, and whether it is time to sync.
    fn done(&self, unit: u32, digest: &str, bytes: u64) -> Result<(u64, bool), Error> {
        let mut state = self.state();
        state.journal.unit(unit, digest)?;
        state.done += bytes;
        state.unsynced += bytes;
        let to_sync = state.unsynced >= SYNC_BYTES;
        if to_sync {
            state.unsynced = 0; // Nobody else begins.
        }
        Ok((state.done, to_sync))
    }

    /// Brings to the disk what has been written down so far; others go on meanwhile.
    fn sync(&self, outputs: &Outputs) -> Result<(), Error> {
        let written = self.state().journal.units();
        outputs.sync().inspect_err(|_| self.state().journal.refused())?;
        self.state().journal.synced(written)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic while it is held leaves at worst a line that was cut.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the disk, or what somebody may have of it, is full.
fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Refuses to begin what there is no room for.
fn enough_room(target: &Path, needed: u64) -> Result<(), Error> {
    // Where the system does not say, the first write that fails does.
    let Ok(space) = cake_platform::free_space(folder_of(target)) else { return Ok(()) };
    match space.free_bytes < needed {
        true => Err(Error::NoRoom { path: target.into(), needed, free: space.free_bytes }),
        false => Ok(()),
    }
}
