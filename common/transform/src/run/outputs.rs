//! The files that are written, under a name beside their own until all is there.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::job::{Job, Target};

/// The outputs of a job, open.
#[derive(Debug)]
pub(super) struct Outputs {
    target: Target,
    /// The target's name while it is not finished.
    part: PathBuf,
    files: Vec<(PathBuf, File)>,
}

/// A name beside `target`.
pub(super) fn beside(target: &Path, ending: &str) -> PathBuf {
    // Without what a slash at the end would make of it: a name inside.
    let target: PathBuf = target.components().collect();
    let mut name: OsString = target.into_os_string();
    name.push(ending);
    name.into()
}

/// Refuses a target that is there and is not to be replaced.
pub(super) fn check(target: &Target, force: bool) -> Result<(), Error> {
    let exists = |path: &Path, hint| Err(Error::Exists { path: path.into(), hint });
    if target.path().file_name().is_none() {
        return exists(target.path(), "give a name of its own, not . or ..");
    }
    match target {
        Target::Directory(path) if path.is_symlink() => {
            exists(path, "it is a link: give the directory that it leads to")
        }
        Target::Directory(path) if is_mounted(path) => {
            exists(path, "a disk begins there: give a directory inside of it")
        }
        Target::File(path) => match fs::symlink_metadata(path) {
            Ok(there) if there.is_dir() => {
                exists(path, "it is a directory, and a file is to be written")
            }
            Ok(_) if !force => exists(path, "--force replaces it"),
            _ => Ok(()),
        },
        Target::Directory(path) => match fs::read_dir(path) {
            Ok(mut entries) => match entries.next() {
                Some(_) => exists(path, "give a directory that is empty or not there"),
                None => Ok(()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(Error::io("read", path, cause)),
        },
    }
}

/// Whether another file system begins at `path`, so that nothing beside it can take its name.
#[cfg(unix)]
fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    device(path).is_some_and(|own| device(folder_of(path)) != Some(own))
}

#[cfg(not(unix))]
fn is_mounted(_: &Path) -> bool {
    false
}

impl Outputs {
    /// Opens what an earlier run left; `None` if that is not what the job writes.
    ///
    /// # Errors
    /// [`Error::Io`] if it is there and cannot be opened.
    pub(super) fn reopen(job: &Job) -> Result<Option<Outputs>, Error> {
        let part = beside(job.target.path(), PART);
        Outputs::there(job, part, File::options().read(true).write(true))
    }

    /// Opens, to be read, what has the names that the outputs get in the end; `None` if that is not what the job writes.
    ///
    /// # Errors
    /// As [`Outputs::reopen`].
    pub(super) fn finished(job: &Job) -> Result<Option<Outputs>, Error> {
        Outputs::there(job, job.target.path().into(), File::options().read(true))
    }

    fn there(job: &Job, at: PathBuf, options: &OpenOptions) -> Result<Option<Outputs>, Error> {
        let outputs = match Outputs::named(job, at, |path| options.open(path)) {
            Ok(outputs) => outputs,
            Err(Error::Io { cause, .. })
                if matches!(
                    cause.kind(),
                    ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let as_long = |((_, file), output): (&(PathBuf, File), &crate::job::Output)| {
            file.metadata().is_ok_and(|found| found.is_file() && found.len() == output.bytes)
        };
        let is_whole = outputs.files.iter().zip(&job.outputs).all(as_long);
        Ok(is_whole.then_some(outputs))
    }

    /// Deletes what there is by the name of what is not finished, if `is_ours`: if the journal beside it is one.
    ///
    /// # Errors
    /// [`Error::Exists`] if it is not, or is the source; [`Error::Io`].
    pub(super) fn clear(job: &Job, is_ours: bool) -> Result<(), Error> {
        let part = beside(job.target.path(), PART);
        let is_source = |path: &Path| {
            let real = (path.canonicalize().ok(), part.canonicalize().ok());
            matches!(&real, (Some(path), Some(part)) if path.starts_with(part))
        };
        let reads_it = || job.source.files.iter().any(|file| is_source(&file.path));
        if part.symlink_metadata().is_ok() && (!is_ours || reads_it()) {
            let hint =
                "its name is needed for what is not finished; move it, or choose another name";
            return Err(Error::Exists { path: part, hint });
        }
        remove(&part).map_err(|cause| Error::io("delete", &part, cause))
    }

    /// Makes them anew, at their full length and without bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn create(job: &Job) -> Result<Outputs, Error> {
        let outputs = Outputs::named(job, beside(job.target.path(), PART), |path| {
            if let (Target::Directory(_), Some(folder)) = (&job.target, path.parent()) {
                fs::create_dir_all(folder)?;
            }
            File::options().read(true).write(true).create_new(true).open(path)
        })?;
        for ((path, file), output) in outputs.files.iter().zip(&job.outputs) {
            file.set_len(output.bytes).map_err(|cause| Error::io("write", path, cause))?;
        }
        Ok(outputs)
    }

    /// Opens each under `part`.
    fn named(
        job: &Job,
        part: PathBuf,
        open: impl Fn(&Path) -> io::Result<File>,
    ) -> Result<Outputs, Error> {
        let mut files = Vec::with_capacity(job.outputs.len());
        for output in &job.outputs {
            let path = match job.target {
                Target::File(_) => part.clone(),
                Target::Directory(_) => part.join(&output.name),
            };
            let file = open(&path).map_err(|cause| Error::io("write", &path, cause))?;
            files.push((path, file));
        }
        Ok(Outputs { target: job.target.clone(), part, files })
    }

    pub(super) fn file(&self, output: usize) -> &File {
        &self.files[output].1
    }

    pub(super) fn path(&self, output: usize) -> &Path {
        &self.files[output].0
    }

    /// The target's name while it is not finished.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// Brings all that was written to the disk, and lets the page cache have its room back.
    pub(super) fn sync(&self) -> Result<(), Error> {
        for (path, file) in &self.files {
            file.sync_data().map_err(|cause| Error::io("write", path, cause))?;
            crate::bytes::forget(file, 0, 0);
        }
        Ok(())
    }

    /// Brings all of them to the disk.
    pub(super) fn sync_all(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|(path, file)| {
            file.sync_all().map_err(|cause| Error::io("write", path, cause))
        })
    }

    /// Gives the outputs their names. What was there by that name, if anything, is there until that moment.
    pub(super) fn finish(self) -> Result<(), Error> {
        drop(self.files);
        let path = self.target.path();
        fs::rename(&self.part, path).map_err(|cause| Error::io("rename", &self.part, cause))?;
        #[cfg(unix)]
        if let Ok(folder) = File::open(folder_of(path)) {
            folder.sync_all().ok(); // Some file systems cannot; the name is there all the same.
        }
        Ok(())
    }
}

/// What the name of an unfinished output ends in.
pub(super) const PART: &str = ".part";
/// What the name of its journal ends in.
pub(super) const JOURNAL: &str = ".part.journal";

/// The folder that `path` is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
