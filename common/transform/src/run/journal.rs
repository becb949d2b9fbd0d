//! What is written down of a job while it runs, so that a later run goes on with it.
//!
//! Lines of text beside the output: first what job it is and since when the machine has been up, then `u UNIT DIGEST` for
//! each unit that is in its place, and `s COUNT` once the first so many of these had reached the disk; `f` if the disk refused
//! what came after. It ends at the first line that is none: a line that was cut, or what a machine that went down left of
//! those that had not reached the disk.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// What the first line begins with.
const FORMAT: &str = "cake-transform 2";
/// That of any journal, also of an earlier version of this program.
const ANY_FORMAT: &str = "cake-transform ";
/// Longest journal that is read: a line for each of some millions of units.
const MAX_BYTES: u64 = 1 << 28;

/// The journal of a job, held by this process alone.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    /// How many units it has.
    units: usize,
    /// Whether a line was cut, as the disk was full: what came after it would not count.
    is_cut: bool,
    /// Whether the disk refused something: what is not known to be on it may never be.
    is_refused: bool,
    /// Whether it was there before, with a job.
    is_old: bool,
}

/// What an earlier run wrote.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Earlier {
    /// The digest of every unit that is in its place.
    pub(super) done: BTreeMap<u32, String>,
    /// Those of them that may not have reached the disk, as the machine was started again since; in the order written.
    pub(super) doubtful: Vec<u32>,
    /// The last that were written, latest first.
    pub(super) latest: Vec<u32>,
    /// Whether the journal goes on as it stands: the machine has been up since, and the disk refused nothing.
    pub(super) goes_on: bool,
    /// Length of the journal without a line that was cut.
    bytes: u64,
}

impl Journal {
    /// Opens the journal of `target`, or makes it.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process holds it, else [`Error::Io`].
    pub(super) fn open(path: &Path, target: &Path) -> Result<Journal, Error> {
        let failed = |cause| Error::io("write", path, cause);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        loop {
            let file = options.open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if !is_at(&file, path) => continue, // Whoever held it has ended and deleted it meanwhile.
                Ok(()) => return Ok(Journal::new(file, path)),
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: target.into() }),
                // A file system without locks: nobody can be kept out.
                Err(TryLockError::Error(cause)) if cause.kind() == ErrorKind::Unsupported => {
                    return Ok(Journal::new(file, path));
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
    }

    fn new(file: File, path: &Path) -> Journal {
        let mut first = [0; ANY_FORMAT.len()];
        let is_old = (&file).read_exact(&mut first).is_ok() && first == ANY_FORMAT.as_bytes();
        let path = path.into();
        Journal { file, path, units: 0, is_cut: false, is_refused: false, is_old }
    }

    /// Whether there was one before, of whatever job.
    pub(super) fn is_old(&self) -> bool {
        self.is_old
    }

    /// What an earlier run of the same job wrote; `None` if there was none, or it was another job.
    pub(super) fn earlier(&mut self, job: &str, boot: &str) -> Result<Option<Earlier>, Error> {
        let failed = |cause| Error::io("read", &self.path, cause);
        let mut text = Vec::new();
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        (&self.file).take(MAX_BYTES).read_to_end(&mut text).map_err(failed)?;
        let valid = std::str::from_utf8(&text).map_or_else(|error| error.valid_up_to(), str::len);
        Ok(parse(&String::from_utf8_lossy(&text[..valid]), job, boot))
    }

    /// Goes on with the units of an earlier run that count, or begins anew. Unless [`Earlier::goes_on`], these units must have
    /// reached the disk.
    pub(super) fn begin(&mut self, job: &str, boot: &str, earlier: &Earlier) -> Result<(), Error> {
        self.is_old = true; // From now on.
        self.units = earlier.done.len();
        let failed = |cause| Error::io("write", &self.path, cause);
        if earlier.goes_on {
            // As it stands: a run that is killed here loses nothing.
            self.file.set_len(earlier.bytes).map_err(failed)?;
            return self.file.seek(SeekFrom::End(0)).map(drop).map_err(failed);
        }
        let mut text = format!("{FORMAT} {job} {boot}\n");
        for (unit, digest) in &earlier.done {
            text += &format!("u {unit} {digest}\n");
        }
        text += &format!("s {}\n", earlier.done.len());
        // Another file takes its place when it is whole, so that a run that is killed here loses nothing.
        let new = self.path.with_extension("journal.new");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(&new).map_err(failed)?;
        match file.lock() {
            Err(cause) if cause.kind() != ErrorKind::Unsupported => return Err(failed(cause)),
            _ => {}
        }
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        std::fs::rename(&new, &self.path).map_err(failed)?;
        self.file = file;
        Ok(())
    }

    /// Writes down a unit that is in its place.
    pub(super) fn unit(&mut self, unit: u32, digest: &str) -> Result<(), Error> {
        self.units += 1;
        self.line(&format!("u {unit} {digest}\n"))
    }

    /// How many units are written down.
    pub(super) fn units(&self) -> usize {
        self.units
    }

    /// Writes down that the first so many of them have reached the disk.
    pub(super) fn synced(&mut self, units: usize) -> Result<(), Error> {
        if self.is_refused {
            return Ok(()); // Who was refused says so.
        }
        self.line(&format!("s {units}\n"))?;
        self.file.sync_data().map_err(|cause| Error::io("write", &self.path, cause))
    }

    /// Writes down that the disk refused something of what is not known to be on it: none of that counts then.
    pub(super) fn refused(&mut self) {
        self.is_refused = true;
        self.line("f\n").ok(); // The disk may refuse this, too; then a restart of the machine is what is left.
    }

    /// Ends it: the job is done.
    pub(super) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|cause| Error::io("delete", &self.path, cause))
    }

    fn line(&mut self, line: &str) -> Result<(), Error> {
        let written = match self.is_cut {
            true => Err(ErrorKind::StorageFull.into()),
            false => self.file.write_all(line.as_bytes()),
        };
        self.is_cut |= written.is_err();
        written.map_err(|cause| Error::io("write", &self.path, cause))
    }
}

/// Whether the file is what is at `path` now.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), path.metadata()) {
        (Ok(own), Ok(there)) => place(own) == place(there),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true // What is open is not deleted there.
}

/// How many of the last units are named as such: enough to find that somebody wrote into the file, and little to read.
const LATEST: usize = 2;

fn parse(text: &str, job: &str, boot: &str) -> Option<Earlier> {
    let mut lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
    let first = lines.next()?;
    let (format_and_job, before) = first.rsplit_once(' ')?;
    if format_and_job != format!("{FORMAT} {job}") {
        return None;
    }
    let mut earlier = Earlier { bytes: first.len() as u64 + 1, ..Earlier::default() };
    let (mut written, mut synced, mut refused) = (Vec::new(), 0, false);
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            // What was written after the disk refused something is not known to be on it either.
            ["s", units] if !refused => match units.parse() {
                Ok(units) => synced = units,
                Err(_) => break,
            },
            ["s", _] => {}
            ["f"] => refused = true,
            ["u", unit, digest] => {
                let Ok(unit) = unit.parse() else { break };
                earlier.done.insert(unit, digest.to_owned());
                written.push(unit);
            }
            _ => break,
        }
        earlier.bytes += line.len() as u64 + 1;
    }
    let unsynced = written.split_off(synced.min(written.len()));
    if refused {
        // What the page cache has of them says nothing of the disk.
        unsynced.iter().for_each(|unit| drop(earlier.done.remove(unit)));
        earlier.latest = written.iter().rev().take(LATEST).copied().collect();
    } else {
        earlier.latest =
            unsynced.iter().rev().chain(written.iter().rev()).take(LATEST).copied().collect();
        if before != boot {
            earlier.doubtful = unsynced;
        }
    }
    earlier.goes_on = before == boot && !refused;
    Some(earlier)
}

/// A text that changes whenever the machine is started again: what was written before may then be lost.
pub(super) fn boot() -> String {
    let said = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id: String = said.chars().filter(|it| it.is_ascii_hexdigit()).collect();
    // Without one, every start counts as another: what had not been synced is looked at.
    if id.is_empty() { format!("process-{}", std::process::id()) } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn what_is_not_known_to_be_on_disk_is_doubtful_after_a_restart() {
        let text = text(&["cake-transform 2 job boot", "u 3 aa", "u 1 bb", "s 1", "u 7 cc"]);
        let same = parse(&text, "job", "boot").unwrap();
        assert_eq!(same.done.keys().copied().collect::<Vec<_>>(), [1, 3, 7]);
        assert_eq!((same.doubtful, same.latest, same.goes_on), (vec![], vec![7, 1], true));
        let other = parse(&text, "job", "later").unwrap();
        assert_eq!((other.doubtful, other.done.len(), other.goes_on), (vec![1, 7], 3, false));
    }

    #[test]
    fn what_came_after_a_refusal_of_the_disk_counts_for_nothing() {
        let text = text(&["cake-transform 2 job boot", "u 3 aa", "u 1 bb", "s 1", "u 7 cc", "f"]);
        for more in ["", "u 9 dd\ns 4\n"] {
            let refused = parse(&(text.clone() + more), "job", "boot").unwrap();
            assert_eq!(refused.done.into_keys().collect::<Vec<_>>(), [3]);
            assert_eq!(
                (refused.doubtful, refused.latest, refused.goes_on),
                (vec![], vec![3], false)
            );
        }
    }

    #[test]
    fn another_job_and_what_is_no_journal_count_for_nothing() {
        for lines in [
            &["cake-transform 2 other boot", "u 3 aa"][..],
            &["cake-transform 1 job boot", "u 3 aa"],
            &[""],
            &[],
        ] {
            assert_eq!(parse(&text(lines), "job", "boot"), None, "{lines:?}");
        }
    }

    #[test]
    fn it_ends_at_the_first_line_that_is_none() {
        let good = text(&["cake-transform 2 job boot", "u 3 aa", "s 1"]);
        for bad in ["v 3 aa", "u -3 aa", "s", "s x", "\0\0\0", ""] {
            let found = parse(&(good.clone() + bad + "\nu 5 bb\n"), "job", "boot").unwrap();
            assert_eq!(found.done.into_keys().collect::<Vec<_>>(), [3], "{bad:?}");
            assert_eq!(found.bytes, good.len() as u64);
        }
    }

    #[test]
    fn a_line_that_was_cut_counts_for_nothing() {
        let cut = text(&["cake-transform 2 job boot", "u 3 aa"]) + "u 4 b";
        let found = parse(&cut, "job", "boot").unwrap();
        assert_eq!((found.done.len(), found.bytes), (1, cut.len() as u64 - 5));
    }

    #[test]
    fn a_journal_is_held_by_one_and_remembers() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("out.journal");
        let target = home.path().join("out");
        let mut journal = Journal::open(&path, &target).unwrap();
        assert_eq!(journal.earlier("job", "boot").unwrap(), None);
        assert!(matches!(Journal::open(&path, &target), Err(Error::Busy { .. })));
        journal.begin("job", "boot", &Earlier::default()).unwrap();
        journal.unit(5, "dd").unwrap();
        assert_eq!(journal.units(), 1);
        journal.synced(1).unwrap();
        drop(journal);
        let mut journal = Journal::open(&path, &target).unwrap();
        let earlier = journal.earlier("job", "boot").unwrap().unwrap();
        assert_eq!(earlier.done, BTreeMap::from([(5, "dd".to_owned())]));
        journal.begin("job", "boot", &earlier).unwrap();
        assert_eq!(journal.earlier("job", "boot").unwrap().unwrap().done, earlier.done);
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}
