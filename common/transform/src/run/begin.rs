//! How a run begins: where an earlier one ended, or anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::bench::Bench;
use super::journal::{Earlier, Journal, boot};
use super::largest::{self, Largest};
use super::outputs::{JOURNAL, Outputs, PART, beside, check, folder_of};
use super::units::{Pass, Units};
use super::work::look;
use crate::digests;
use crate::error::Error;
use crate::job::{Job, Observer, Options, Outcome};

/// What a run goes on with.
pub(super) struct Begun {
    pub(super) outputs: Outputs,
    /// What the journal has of every unit that is done.
    pub(super) earlier: BTreeMap<u32, String>,
    /// Bytes that are in their place.
    pub(super) written: u64,
    /// Bytes that are in their place when all is done.
    pub(super) total: u64,
}

/// Whether an earlier run had finished but for its journal, which then goes.
pub(super) fn is_done(
    job: &Job,
    units: &Units,
    identity: &str,
    observer: &dyn Observer,
) -> Result<Option<Outcome>, Error> {
    let target = job.target.path();
    let path = beside(target, JOURNAL);
    if !path.exists() || !target.exists() || beside(target, PART).exists() {
        return Ok(None);
    }
    let Some(outputs) = Outputs::finished(job)? else { return Ok(None) };
    let mut journal = Journal::open(&path, target)?;
    let is_done = has_all(job, units, identity, observer, &outputs, &mut journal)?;
    if is_done || !journal.is_old() {
        journal.remove()?; // Also one that was just made, as somebody else had ended meanwhile.
    }
    Ok(is_done.then(|| Outcome { bytes: job.bytes(), resumed: job.bytes() }))
}

/// Whether the journal has all units, and the last of them are in their place.
fn has_all(
    job: &Job,
    units: &Units,
    identity: &str,
    observer: &dyn Observer,
    outputs: &Outputs,
    journal: &mut Journal,
) -> Result<bool, Error> {
    let Some(earlier) = journal.earlier(identity, &boot())? else { return Ok(false) };
    if earlier.done.len() != units.count() as usize {
        return Ok(false);
    }
    // Somebody else may have written what has the name.
    let (stop, none) = (AtomicBool::new(false), Largest::default());
    let mut bench = Bench::new(job, outputs, &none, observer, &stop);
    for number in earlier.latest.iter().filter(|number| **number < units.count()) {
        let unit = units.get(*number);
        if unit.pass == Pass::Write
            && look(&mut bench, &unit).map_err(of_all(job))? != earlier.done[number]
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a stop before anything was written says.
fn of_all(job: &Job) -> impl Fn(Error) -> Error {
    |error| match error {
        Error::Stopped { .. } | Error::Interrupted => {
            Error::Stopped { done: 0, total: job.bytes() }
        }
        error => error,
    }
}

/// Begins, or goes on; the journal is this run's alone.
pub(super) fn begin(
    job: &Job,
    units: &Units,
    identity: &str,
    options: Options,
    observer: &dyn Observer,
) -> Result<(Journal, Begun), Error> {
    let target = job.target.path();
    check(&job.target, options.force)?;
    let mut journal = Journal::open(&beside(target, JOURNAL), target)?;
    match go_on(job, units, identity, options, observer, &mut journal) {
        Ok(begun) => Ok((journal, begun)),
        Err(error) => {
            if !journal.is_old() {
                journal.remove().ok(); // Nothing was begun.
            }
            Err(error)
        }
    }
}

fn go_on(
    job: &Job,
    units: &Units,
    identity: &str,
    options: Options,
    observer: &dyn Observer,
    journal: &mut Journal,
) -> Result<Begun, Error> {
    check(&job.target, options.force)?; // Whoever held the journal may just have ended.
    let resumed = resume(job, units, journal, identity, observer).map_err(of_all(job))?;
    let (there, earlier) = match resumed {
        Some((outputs, earlier)) => (Some(outputs), earlier),
        None => {
            Outputs::clear(job, journal.is_old())?;
            (None, Earlier::default())
        }
    };
    let (mut written, mut needed) = (0, 0);
    for unit in 0..units.count() {
        let bytes: u64 = job.places(&units.get(unit)).iter().map(|(_, bytes)| bytes).sum();
        *if earlier.done.contains_key(&unit) { &mut written } else { &mut needed } += bytes;
    }
    enough_room(job.target.path(), needed)?;
    match &there {
        None => check_source(job, options.threads, observer)?,
        // What was looked at counts as being on the disk from now on.
        Some(outputs) if !earlier.same_boot => outputs.sync().inspect_err(|_| journal.refused())?,
        Some(_) => {}
    }
    journal.begin(identity, &boot(), &earlier)?;
    let outputs = match there {
        Some(outputs) => outputs,
        None => Outputs::create(job)?,
    };
    Ok(Begun { outputs, earlier: earlier.done, written, total: written + needed })
}

/// What an earlier run left, if it can be gone on with.
fn resume(
    job: &Job,
    units: &Units,
    journal: &mut Journal,
    identity: &str,
    observer: &dyn Observer,
) -> Result<Option<(Outputs, Earlier)>, Error> {
    let Some(mut earlier) = journal.earlier(identity, &boot())? else { return Ok(None) };
    let Some(outputs) = Outputs::reopen(job)? else { return Ok(None) };
    let is_known = |number: u32, text: &str| {
        number < units.count()
            && (units.get(number).pass == Pass::Write || largest::from_text(text).is_some())
    };
    earlier.done.retain(|&unit, text| is_known(unit, text));
    let (stop, none) = (AtomicBool::new(false), Largest::default());
    let mut bench = Bench::new(job, &outputs, &none, observer, &stop);
    // What may have been lost is looked at and done again; the last of the rest is looked at for whoever changed it.
    let doubtful: BTreeSet<u32> = earlier.doubtful.iter().copied().collect();
    for &number in doubtful.iter().chain(&earlier.latest) {
        let Some(text) = earlier.done.get(&number) else { continue };
        let (unit, is_doubtful) = (units.get(number), doubtful.contains(&number));
        bench.check()?;
        let is_there = match unit.pass {
            Pass::Look => !is_doubtful, // Nothing but the journal has it.
            Pass::Write => look(&mut bench, &unit)? == *text,
        };
        match (is_there, is_doubtful) {
            (true, _) => {}
            (false, true) => drop(earlier.done.remove(&number)),
            (false, false) => return Err(Error::Changed { path: outputs.part().into() }),
        }
    }
    drop(bench);
    Ok(Some((outputs, earlier)))
}

/// Refuses a source whose files are not what was written, as far as they end in a checksum: before anything is written of
/// it. That reads all of them, and is not done again when a job goes on.
fn check_source(job: &Job, threads: usize, observer: &dyn Observer) -> Result<(), Error> {
    /// Who is told of another work's progress.
    struct Checking<'a>(&'a dyn Observer);
    impl Observer for Checking<'_> {
        fn progress(&self, done: u64, total: u64) {
            self.0.checked(done, total);
        }
        fn is_cancelled(&self) -> bool {
            self.0.is_cancelled()
        }
    }
    digests::check(&job.source, threads, &Checking(observer)).map_err(of_all(job))
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
