//! Small work on files: bytes at positions, links, names that change at once.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Makes a directory and those above it.
pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|cause| Error::io("make", path, cause))
}

/// Whether a path is a link itself, wherever it leads.
pub(crate) fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_symlink())
}

/// Has what `make` makes at the path that it is given appear as `path`, at once. Until then it lies in `directory`, which
/// is on the same file system; if the process is killed it stays there.
pub(crate) fn put(
    directory: &Path,
    path: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), Error> {
    // By chance: processes of several machines or containers share a cache, and may have the same numbers.
    let new = directory.join(format!(".{:016x}.tmp", RandomState::new().hash_one(path)));
    let done = make(&new).and_then(|()| std::fs::rename(&new, path));
    done.map_err(|cause| {
        std::fs::remove_file(&new).ok();
        Error::io("write", path, cause)
    })
}

/// Makes `path` another name of a file: a link with this text, or where there are none, the file's own or a copy.
pub(crate) fn link(path: &Path, text: &Path, file: &Path) -> io::Result<()> {
    symlink(text, path)
        .or_else(|_| std::fs::hard_link(file, path))
        .or_else(|_| std::fs::copy(file, path).map(drop))
}

#[cfg(unix)]
fn symlink(text: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(text, path)
}

#[cfg(windows)]
fn symlink(text: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(text, path)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Bytes that a file takes on the disk, holes not counted where the system tells.
pub(crate) fn disk_bytes(meta: &std::fs::Metadata) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        meta.blocks().saturating_mul(512)
    }
    #[cfg(not(unix))]
    meta.len()
}

/// Bytes that files and links take on the disk; what is not there takes none.
pub(crate) fn size(paths: impl IntoIterator<Item = PathBuf>) -> u64 {
    paths.into_iter().filter_map(|path| Some(disk_bytes(&path.symlink_metadata().ok()?))).sum()
}

/// All files and links below a directory, links not followed. What cannot be read is not there.
pub(crate) fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) => found.push(entry.path()),
                Err(_) => {}
            }
        }
    }
    found.sort();
    found
}

/// Writes all bytes at a position.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < bytes.len() {
            match std::os::windows::fs::FileExt::seek_write(
                file,
                &bytes[done..],
                offset + done as u64,
            )? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => done += written,
            }
        }
        Ok(())
    }
}

/// Fills a buffer from a position on.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
    }
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < buffer.len() {
            match std::os::windows::fs::FileExt::seek_read(
                file,
                &mut buffer[done..],
                offset + done as u64,
            )? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}
