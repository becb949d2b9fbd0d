//! What is written down of a job while it runs, so that a later run goes on with it.
//!
//! Lines of text beside the output: first what job it is and since when the machine has been up, then `u UNIT DIGEST` for
//! each unit that is in its place, and `s COUNT` once the first so many of these had reached the disk. It ends at the first
//! line that is none: a line that was cut, or what a machine that went down left of those that had not reached the disk.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// What the first line begins with; another number wherever a unit of the same number says other bytes than before.
const FORMAT: &str = "cake-transform 3";
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
    /// Length of the journal up to what says of units that they reached the disk.
    synced_bytes: u64,
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
    /// Whether the machine has been up since.
    pub(super) same_boot: bool,
    /// Length of the journal up to the first line that is none.
    bytes: u64,
    /// Length up to the last line that says of units that they reached the disk.
    synced_bytes: u64,
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
                Ok(()) if !cake_platform::is_at(&file, path) => continue, // Whoever held it has ended and deleted it meanwhile.
                Ok(()) => return Journal::of(file, path),
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: target.into() }),
                // A file system without locks: nobody can be kept out.
                Err(TryLockError::Error(cause)) if cause.kind() == ErrorKind::Unsupported => {
                    return Journal::of(file, path);
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
    }

    /// A file is a journal if it is empty or says so: nobody else's is written over.
    fn of(file: File, path: &Path) -> Result<Journal, Error> {
        let mut first = Vec::new();
        let read = (&file).take(ANY_FORMAT.len() as u64).read_to_end(&mut first);
        read.map_err(|cause| Error::io("read", path, cause))?;
        if !first.is_empty() && first != ANY_FORMAT.as_bytes() {
            let hint = "its name is needed for the journal of what is not finished; move it, or choose another name";
            return Err(Error::Exists { path: path.into(), hint });
        }
        let (path, is_old) = (path.into(), !first.is_empty());
        let (is_cut, is_refused) = (false, false);
        Ok(Journal { file, path, units: 0, is_cut, is_refused, synced_bytes: 0, is_old })
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
        let earlier = parse(&String::from_utf8_lossy(&text[..valid]), job, boot);
        self.synced_bytes = earlier.as_ref().map_or(0, |earlier| earlier.synced_bytes);
        Ok(earlier)
    }

    /// Goes on with the units of an earlier run that count, or begins anew. Unless the machine has been up since, these units
    /// must have reached the disk.
    pub(super) fn begin(&mut self, job: &str, boot: &str, earlier: &Earlier) -> Result<(), Error> {
        self.units = earlier.done.len();
        let failed = |cause| Error::io("write", &self.path, cause);
        if earlier.same_boot {
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
        self.file = anew(&new, &self.path, &text).map_err(|cause| {
            std::fs::remove_file(&new).ok();
            failed(cause)
        })?;
        (self.synced_bytes, self.is_old) = (text.len() as u64, true);
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
        self.line(&format!("s {units}\n"))?;
        let synced = self.file.sync_data().and_then(|()| self.file.stream_position());
        self.synced_bytes = synced.map_err(|cause| Error::io("write", &self.path, cause))?;
        Ok(())
    }

    /// Forgets what is not known to be on the disk, as the disk refused something of it: what the page cache has of that says
    /// nothing of the disk. That needs no room.
    pub(super) fn refused(&mut self) {
        self.is_refused = true;
        self.file.set_len(self.synced_bytes).ok(); // The disk may refuse this, too; then a restart of the machine is what is left.
    }

    /// Ends it: the job is done.
    pub(super) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(|cause| Error::io("delete", &self.path, cause))
    }

    fn line(&mut self, line: &str) -> Result<(), Error> {
        if self.is_refused {
            return Ok(()); // Who was refused says so.
        }
        let written = match self.is_cut {
            true => Err(ErrorKind::StorageFull.into()),
            false => self.file.write_all(line.as_bytes()),
        };
        self.is_cut |= written.is_err();
        written.map_err(|cause| Error::io("write", &self.path, cause))
    }
}

/// Writes a journal that takes the place of the one at `path` when it is whole.
fn anew(new: &Path, path: &Path, text: &str) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let mut file = options.open(new)?;
    match file.lock() {
        Err(cause) if cause.kind() != ErrorKind::Unsupported => return Err(cause),
        _ => {}
    }
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    std::fs::rename(new, path)?;
    Ok(file)
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
    let bytes = first.len() as u64 + 1;
    let same_boot = before == boot;
    let mut earlier = Earlier { same_boot, bytes, synced_bytes: bytes, ..Earlier::default() };
    let (mut written, mut synced) = (Vec::new(), 0);
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let end = earlier.bytes + line.len() as u64 + 1;
        match words[..] {
            ["s", units] => {
                let Ok(units) = units.parse() else { break };
                (synced, earlier.synced_bytes) = (units, end);
            }
            ["u", unit, digest] => {
                let Ok(unit) = unit.parse() else { break };
                earlier.done.insert(unit, digest.to_owned());
                written.push(unit);
            }
            _ => break,
        }
        earlier.bytes = end;
    }
    earlier.latest = written.iter().rev().take(LATEST).copied().collect();
    if !same_boot {
        earlier.doubtful = written.split_off(synced.min(written.len()));
    }
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
        let text = text(&["cake-transform 3 job boot", "u 3 aa", "u 1 bb", "s 1", "u 7 cc"]);
        let same = parse(&text, "job", "boot").unwrap();
        assert_eq!(same.done.keys().copied().collect::<Vec<_>>(), [1, 3, 7]);
        assert_eq!((same.doubtful, same.latest, same.same_boot), (vec![], vec![7, 1], true));
        let other = parse(&text, "job", "later").unwrap();
        assert_eq!((other.doubtful, other.done.len(), other.same_boot), (vec![1, 7], 3, false));
    }

    #[test]
    fn what_a_disk_refused_to_keep_counts_for_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("out.journal");
        let open = || Journal::open(&path, Path::new("out")).unwrap();
        let units = |journal: &mut Journal| -> Vec<u32> {
            journal.earlier("job", "boot").unwrap().unwrap().done.into_keys().collect()
        };
        let mut journal = open();
        journal.begin("job", "boot", &Earlier::default()).unwrap();
        journal.unit(3, "aa").unwrap();
        journal.synced(1).unwrap();
        journal.unit(1, "bb").unwrap();
        journal.refused();
        // Others have not heard of it yet.
        journal.unit(7, "cc").unwrap();
        journal.synced(3).unwrap();
        assert_eq!(units(&mut journal), [3]);
        drop(journal);
        // Nor does one count that goes on with units of which that is not known, and is refused.
        let mut journal = open();
        let earlier = journal.earlier("job", "boot").unwrap().unwrap();
        journal.begin("job", "boot", &earlier).unwrap();
        journal.unit(5, "dd").unwrap();
        drop(journal);
        let mut journal = open();
        assert_eq!(units(&mut journal), [3, 5]);
        journal.refused();
        assert_eq!(units(&mut journal), [3]);
    }

    #[test]
    fn what_somebody_else_wrote_is_no_journal() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("out.journal");
        std::fs::write(&path, "Dear diary").unwrap();
        let error = Journal::open(&path, Path::new("out")).unwrap_err();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"Dear diary");
    }

    #[test]
    fn another_job_and_what_is_no_journal_count_for_nothing() {
        for lines in [
            &["cake-transform 3 other boot", "u 3 aa"][..],
            &["cake-transform 2 job boot", "u 3 aa"],
            &[""],
            &[],
        ] {
            assert_eq!(parse(&text(lines), "job", "boot"), None, "{lines:?}");
        }
    }

    #[test]
    fn it_ends_at_the_first_line_that_is_none() {
        let good = text(&["cake-transform 3 job boot", "u 3 aa", "s 1"]);
        for bad in ["v 3 aa", "u -3 aa", "s", "s x", "\0\0\0", ""] {
            let found = parse(&(good.clone() + bad + "\nu 5 bb\n"), "job", "boot").unwrap();
            assert_eq!(found.done.into_keys().collect::<Vec<_>>(), [3], "{bad:?}");
            assert_eq!(found.bytes, good.len() as u64);
        }
    }

    #[test]
    fn a_line_that_was_cut_counts_for_nothing() {
        let cut = text(&["cake-transform 3 job boot", "u 3 aa"]) + "u 4 b";
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
