//! One directory of the store, and the files in it that are the store's own.
//!
//! Whoever can write to the directory could plant a link there under the name of a file to come: what is written would
//! go where the link leads. So a directory is opened once and files are opened in it, never through a link; what is
//! written has one name, and is no device. A file with a name that is taken is replaced, not written to.

use std::fs::{self, File};
use std::io;
#[cfg(unix)]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::OnceLock;

#[cfg(unix)]
use rustix::fs::{AtFlags, Mode, OFlags};

/// A directory of the store.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Whether it may be a link: the store's own directory is wherever its user says.
    may_be_link: bool,
    /// Opened when it is used first.
    #[cfg(unix)]
    directory: OnceLock<OwnedFd>,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// To be read.
    Reading,
    /// To be read and written; it is there.
    Writing,
    /// The same; it is made if it is not there.
    WritingOrNew,
    /// To be written; there must be none.
    New,
}

/// Why what is there cannot be the store's own.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum NotOwn {
    #[error("it is a link, and what a store has lies in it; remove the link")]
    Link,
    #[error("it is no file; remove it")]
    NoFile,
    #[error("the same file has {0} names, and a store writes only to what is its alone; remove it")]
    Names(u64),
}

impl Folder {
    /// The directory at `path`, which need not be there yet.
    pub(super) fn new(path: &Path, may_be_link: bool) -> Folder {
        Folder {
            path: path.to_owned(),
            may_be_link,
            #[cfg(unix)]
            directory: OnceLock::new(),
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it if it is not there, and what it is in.
    pub(super) fn create(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(facts) if facts.is_symlink() && !self.may_be_link => Err(not_own(NotOwn::Link)),
            _ => fs::create_dir_all(&self.path),
        }
    }

    /// Makes renames in it survive a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        cake_identity::files::sync_directory(&self.path)
    }
}

#[cfg(unix)]
impl Folder {
    /// The file of this name.
    ///
    /// # Errors
    /// What the system says, or [`NotOwn`] in an [`io::Error`].
    pub(super) fn open(&self, name: &str, purpose: For) -> io::Result<File> {
        let flags = match purpose {
            For::Reading => OFlags::RDONLY,
            For::Writing => OFlags::RDWR,
            For::WritingOrNew => OFlags::RDWR | OFlags::CREATE,
            For::New => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        // One that is a pipe would else be waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.directory()?, name, flags, Mode::from_raw_mode(0o666));
        let file = match opened {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::MLINK) => {
                return Err(not_own(NotOwn::Link));
            }
            Err(rustix::io::Errno::ISDIR) => return Err(not_own(NotOwn::NoFile)),
            Err(error) => return Err(error.into()),
        };
        let facts = file.metadata()?;
        let names = std::os::unix::fs::MetadataExt::nlink(&facts);
        match purpose {
            _ if !facts.is_file() => Err(not_own(NotOwn::NoFile)),
            For::Writing | For::WritingOrNew if names > 1 => Err(not_own(NotOwn::Names(names))),
            _ => Ok(file),
        }
    }

    /// Gives a file a name in another directory, or in this one; what has that name is replaced.
    pub(super) fn rename(&self, from: &str, folder: &Folder, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.directory()?, from, folder.directory()?, to)?)
    }

    /// Removes the file of this name, or the link.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.directory()?, name, AtFlags::empty())?)
    }

    fn directory(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(directory) = self.directory.get() {
            return Ok(directory.as_fd());
        }
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        flags.set(OFlags::NOFOLLOW, !self.may_be_link);
        let directory = rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|error| {
            let is_link = |facts: fs::Metadata| facts.is_symlink() && !self.may_be_link;
            match fs::symlink_metadata(&self.path).is_ok_and(is_link) {
                true => not_own(NotOwn::Link),
                false => error.into(),
            }
        })?;
        Ok(self.directory.get_or_init(|| directory).as_fd())
    }
}

/// Links are looked for before a file is opened: nothing better is known for every system.
#[cfg(not(unix))]
impl Folder {
    pub(super) fn open(&self, name: &str, purpose: For) -> io::Result<File> {
        let path = self.path.join(name);
        match fs::symlink_metadata(&path) {
            Ok(facts) if facts.is_symlink() => return Err(not_own(NotOwn::Link)),
            Ok(facts) if !facts.is_file() => return Err(not_own(NotOwn::NoFile)),
            _ => {}
        }
        let mut options = File::options();
        options.read(true).write(purpose != For::Reading);
        options.create(purpose == For::WritingOrNew).create_new(purpose == For::New);
        options.open(path)
    }

    pub(super) fn rename(&self, from: &str, folder: &Folder, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), folder.path.join(to))
    }

    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }
}

fn not_own(why: NotOwn) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    const ALL: [For; 4] = [For::Reading, For::Writing, For::WritingOrNew, For::New];

    fn why(result: io::Result<File>) -> String {
        result.map(drop).expect_err("refused").to_string()
    }

    #[test]
    fn what_is_no_file_of_its_own_is_neither_read_nor_written() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        fs::write(&outside, "mine").unwrap();
        let folder = Folder::new(&place.path().join("store"), false);
        folder.create().unwrap();
        let inside = |name: &str| folder.path().join(name);
        symlink(&outside, inside("link")).unwrap();
        symlink(place.path().join("nothing"), inside("dangling")).unwrap();
        fs::create_dir(inside("directory")).unwrap();
        fs::hard_link(&outside, inside("twice")).unwrap();
        for purpose in ALL {
            assert!(folder.open("link", purpose).is_err(), "{purpose:?}");
            assert!(folder.open("dangling", purpose).is_err(), "{purpose:?}");
            assert!(folder.open("directory", purpose).is_err(), "{purpose:?}");
        }
        assert_eq!(why(folder.open("link", For::WritingOrNew)), NotOwn::Link.to_string());
        assert_eq!(why(folder.open("dangling", For::WritingOrNew)), NotOwn::Link.to_string());
        assert_eq!(why(folder.open("directory", For::Reading)), NotOwn::NoFile.to_string());
        assert_eq!(why(folder.open("twice", For::WritingOrNew)), NotOwn::Names(2).to_string());
        assert!(folder.open("twice", For::Reading).is_ok(), "as whoever keeps a copy of it");
        assert_eq!(fs::read(&outside).unwrap(), b"mine");
        assert!(!place.path().join("nothing").exists());
        // A name that is taken by a link is given to a file; the link goes.
        folder.open("new", For::New).unwrap().write_all(b"own").unwrap();
        folder.rename("new", &folder, "link").unwrap();
        assert_eq!(fs::read(inside("link")).unwrap(), b"own");
        folder.remove("dangling").unwrap();
        assert_eq!(fs::read(&outside).unwrap(), b"mine");
    }

    #[test]
    fn a_directory_that_is_a_link_is_none_of_the_store() {
        let place = tempfile::tempdir().unwrap();
        let (elsewhere, path) = (place.path().join("elsewhere"), place.path().join("partial"));
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        let folder = Folder::new(&path, false);
        assert_eq!(folder.create().unwrap_err().to_string(), NotOwn::Link.to_string());
        assert_eq!(why(folder.open("file", For::New)), NotOwn::Link.to_string());
        let top = Folder::new(&path, true);
        assert!(top.create().is_ok() && top.open("file", For::New).is_ok(), "as its user says");
        // One that is exchanged later is not gone to, either.
        let (own, moved) = (place.path().join("own"), place.path().join("moved"));
        let folder = Folder::new(&own, false);
        folder.create().unwrap();
        folder.open("first", For::New).unwrap();
        fs::rename(&own, &moved).unwrap();
        symlink(&elsewhere, &own).unwrap();
        folder.open("second", For::New).unwrap();
        assert!(moved.join("second").exists() && !elsewhere.join("second").exists());
    }
}
