//! Reading files: at a position, without moving a cursor that others share, or no more than so much.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// That directory, or the directory of that file; `.` for a bare name.
pub(crate) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        _ if path.is_dir() => path.to_owned(),
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Reads up to `limit_bytes`; `Err` holds the length when there is more.
///
/// # Errors
/// What the system says.
pub(crate) fn read_bounded(path: &Path, limit_bytes: u64) -> io::Result<Result<Vec<u8>, u64>> {
    let file = File::open(path)?;
    let announced = file.metadata()?.len();
    if announced > limit_bytes {
        return Ok(Err(announced));
    }
    let mut bytes = Vec::new();
    let read = file.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)? as u64;
    Ok(if read > limit_bytes { Err(read) } else { Ok(bytes) })
}

/// The first `most` bytes of a small file.
///
/// # Errors
/// What the system says.
pub(crate) fn read_first(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Fills `buffer` from `offset` on.
///
/// # Errors
/// `UnexpectedEof` when the file ends first; else what the system says.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
    }
    #[cfg(windows)]
    {
        let (mut done, mut offset) = (0, offset);
        while done < buffer.len() {
            match std::os::windows::fs::FileExt::seek_read(file, &mut buffer[done..], offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    done += read;
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_not_read_to_its_end() {
        let path = Path::new("/dev/zero");
        if path.exists() {
            assert_eq!(read_bounded(path, 100).unwrap(), Err(101));
        }
    }

    #[test]
    fn reads_up_to_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), Ok(b"12345".to_vec()));
        assert_eq!(read_bounded(&path, 4).unwrap(), Err(5));
    }
}
