//! Whose a model's folder is for now: those who fetch share it, whoever deletes has it alone.
//!
//! The lock is a file beside those of the Hub's own tools, which hold one for each file that they are fetching:
//!
//! ```text
//! .locks/models--org--name/cake.lock      ours
//!                          DIGEST.lock    theirs
//! models--org--name/                      the folder
//! ```
//!
//! The system lets go of it when its process ends, however that ends.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;

use cake_platform::is_at;

use crate::cache::Folder;
use crate::error::Error;
use crate::files::{make_directory, walk};

/// What our file is called.
const OWN: &str = "cake.lock";
/// What those may do who keep somebody from deleting.
const IN_USE: &str = "fetching or deleting";

/// A model's folder, held until this is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Holds the folder of `repo` together with others who fetch: nothing of it is deleted meanwhile.
    ///
    /// # Errors
    /// [`Error::Held`] while somebody deletes; [`Error::Io`].
    pub(crate) fn shared(folder: &Folder, repo: &str) -> Result<Lock, Error> {
        take(folder, repo, File::try_lock_shared, "deleting")
    }

    /// Holds the folder of `repo` alone: nobody fetches files of it meanwhile. The Hub's own tools do not know this
    /// lock; they are seen if they fetch just now.
    ///
    /// # Errors
    /// [`Error::Held`] while somebody fetches or deletes; [`Error::Io`].
    pub(crate) fn alone(folder: &Folder, repo: &str) -> Result<Lock, Error> {
        let lock = take(folder, repo, File::try_lock, IN_USE)?;
        let own = folder.locks().join(OWN);
        match walk(&folder.locks()).into_iter().find(|path| *path != own && is_held(path)) {
            Some(path) => Err(Error::Held { doing: IN_USE, repo: repo.to_owned(), path }),
            None => Ok(lock),
        }
    }
}

fn take(
    folder: &Folder,
    repo: &str,
    lock: fn(&File) -> Result<(), TryLockError>,
    doing: &'static str,
) -> Result<Lock, Error> {
    make_directory(&folder.locks())?;
    let path = folder.locks().join(OWN);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    loop {
        let file = options.open(&path).map_err(|cause| Error::io("open", &path, cause))?;
        match lock(&file) {
            Ok(()) if !is_at(&file, &path) => {} // Another program cleared these files away meanwhile.
            Ok(()) => return Ok(Lock { _file: file }),
            // A file system without locks: then nobody is kept out.
            Err(TryLockError::Error(cause)) if cause.kind() == ErrorKind::Unsupported => {
                return Ok(Lock { _file: file });
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Held { doing, repo: repo.to_owned(), path });
            }
            Err(TryLockError::Error(cause)) => return Err(Error::io("lock", &path, cause)),
        }
    }
}

/// Whether another process holds the lock of a file. One that cannot be looked at is not held.
fn is_held(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_fetch_share_it_and_whoever_deletes_is_alone() {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/name".parse().unwrap());
        let refused = |lock: Result<Lock, Error>| lock.unwrap_err().to_string();
        let fetching = [(); 2].map(|()| Lock::shared(&folder, "org/name").unwrap());
        let said = refused(Lock::alone(&folder, "org/name"));
        assert!(said.starts_with("another process is fetching or deleting files of org/name ("));
        drop(fetching);
        let deleting = Lock::alone(&folder, "org/name").unwrap();
        let said = refused(Lock::shared(&folder, "org/name"));
        assert!(said.starts_with("another process is deleting files of org/name ("), "{said}");
        refused(Lock::alone(&folder, "org/name"));
        drop(deleting);
        Lock::shared(&folder, "org/name").unwrap();
        let other = Folder::of(cache.path(), &"org/other".parse().unwrap());
        let _deleting = Lock::alone(&other, "org/other").unwrap();
        Lock::alone(&folder, "org/name").unwrap();
    }

    #[test]
    fn files_that_the_hubs_own_tools_fetch_are_seen() {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::of(cache.path(), &"org/name".parse().unwrap());
        let path = cache.path().join(".locks/models--org--name").join("a".repeat(40) + ".lock");
        make_directory(path.parent().unwrap()).unwrap();
        let theirs = File::create(&path).unwrap();
        theirs.lock().unwrap();
        let error = Lock::alone(&folder, "org/name").unwrap_err();
        assert!(matches!(&error, Error::Held { path: held, .. } if *held == path), "{error}");
        Lock::shared(&folder, "org/name").unwrap();
        drop(theirs);
        Lock::alone(&folder, "org/name").unwrap();
    }
}
