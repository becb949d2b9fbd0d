//! Files that only their owner can read, and how a small file is replaced so that a power cut leaves the old one or the
//! new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Longest file read.
const LONGEST: u64 = 16 << 20;

/// Makes a directory that only its owner can look into.
pub(crate) fn make_private(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Replaces a file at once: whoever reads it finds the old content or the new one, also after a power cut. Only its
/// owner can read it. A link of that name is replaced, and not followed.
///
/// # Errors
/// What the system says; the file is then as it was, unless the directory alone could not be flushed.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(format!("{}.new", crate::random_token()));
    let result = write_new(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if result.is_err() {
        fs::remove_file(&beside).ok();
    }
    result?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    sync_directory(directory.unwrap_or(Path::new(".")))
}

/// Makes renames inside `directory` survive a power cut.
///
/// # Errors
/// What the system says.
#[cfg(unix)]
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Some file systems (FUSE, SMB) have nothing to flush for a directory and say so.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

/// Directories cannot be flushed here; the file system keeps its own order.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}

/// Opens a file that processes take turns by, and makes it if it is not there. What it has stays as it is; a link is
/// not followed.
///
/// # Errors
/// What the system says.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, no_link.cast_signed());
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    options.open(path)
}

/// Replaces a file by `content` as JSON, as [`replace`] does.
pub(crate) fn write<T: Serialize>(
    path: &Path,
    what: &'static str,
    content: &T,
) -> Result<(), Error> {
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let json = serde_json::to_vec_pretty(content).map_err(|error| failed(error.into()))?;
    replace(path, &json).map_err(failed)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// What a file has; `None` if there is none.
pub(crate) fn read<T: DeserializeOwned>(
    path: &Path,
    what: &'static str,
) -> Result<Option<T>, Error> {
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    let parsed = serde_json::from_slice(&bytes);
    let damaged = |error: serde_json::Error| Error::Damaged {
        what,
        path: path.to_owned(),
        reason: error.to_string(),
    };
    parsed.map(Some).map_err(damaged)
}

/// Bytes as text in files.
pub(crate) mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_link_leads_to_is_not_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        fs::write(at("outside"), "mine").expect("written");
        for name in ["file", "lock"] {
            symlink(at("outside"), at(name)).expect("made");
        }
        replace(&at("file"), b"own").expect("written");
        assert_eq!(fs::read(at("file")).expect("there"), b"own");
        assert!(!fs::symlink_metadata(at("file")).expect("there").is_symlink());
        assert!(open_lock(&at("lock")).is_err());
        assert_eq!(fs::read(at("outside")).expect("there"), b"mine");
        fs::write(at("busy.lock"), "whose").expect("written");
        open_lock(&at("busy.lock")).expect("opened");
        assert_eq!(fs::read(at("busy.lock")).expect("there"), b"whose");
        let left = fs::read_dir(directory.path()).expect("readable").count();
        assert_eq!(left, 4, "nothing is left beside them");
        sync_directory(directory.path()).expect("flushed");
        assert!(sync_directory(&at("nowhere")).is_err());
    }
}
