//! Reading and writing at positions, without filling the page cache with what nobody reads again.

use std::fs::File;
use std::io;

/// The usual size of a file system's blocks and of pages.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Fills `buffer` from `offset` on. Pages that were not in memory do not stay there, where the system can say so; those
/// that were stay.
///
/// # Errors
/// `UnexpectedEof` when the file ends first; else what the system says.
pub(crate) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match read_at(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `buffer` at `offset`; the pages go to the disk at once and do not stay in memory, where the system can
/// say so.
///
/// # Errors
/// What the system says.
pub(crate) fn write_all_at(file: &File, buffer: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match write_at(file, &buffer[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io::{self, IoSlice, IoSliceMut};
    use std::num::NonZeroU64;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{Advice, fadvise};
    use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

    /// `RWF_DONTCACHE`, since Linux 6.14.
    const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
    /// Whether the system or a file system that is read from refused that once.
    static REFUSED_TO_READ: AtomicBool = AtomicBool::new(false);
    /// The same of one that is written to.
    static REFUSED_TO_WRITE: AtomicBool = AtomicBool::new(false);

    pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = || preadv2(file, &mut [IoSliceMut::new(buffer)], offset, DONT_CACHE);
        if let Some(result) = uncached(&REFUSED_TO_READ, read) {
            return result;
        }
        let was_cached = is_cached(file, offset, buffer.len() as u64);
        let read = file.read_at(buffer, offset)?;
        if !was_cached {
            forget(file, offset, read as u64);
        }
        Ok(read)
    }

    pub(super) fn write_at(file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        let write = || pwritev2(file, &[IoSlice::new(buffer)], offset, DONT_CACHE);
        // Else the pages go when all of it is brought to the disk.
        uncached(&REFUSED_TO_WRITE, write).unwrap_or_else(|| file.write_at(buffer, offset))
    }

    pub(crate) fn is_cached(file: &File, offset: u64, bytes: u64) -> bool {
        let mut byte = [0];
        let mut at = |offset| {
            preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT)
        };
        bytes == 0 || at(offset).is_ok() && at(offset + bytes - 1).is_ok()
    }

    pub(crate) fn forget(file: &File, offset: u64, bytes: u64) {
        fadvise(file, offset, NonZeroU64::new(bytes), Advice::DontNeed).ok(); // Only a wish.
    }

    /// `None` if it cannot be asked for here.
    fn uncached(
        refused: &AtomicBool,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Option<io::Result<usize>> {
        if refused.load(Ordering::Relaxed) {
            return None;
        }
        match call() {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                refused.store(true, Ordering::Relaxed);
                None
            }
            result => Some(result.map_err(io::Error::from)),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system_cache {
    use std::fs::File;

    pub(crate) fn is_cached(_: &File, _: u64, _: u64) -> bool {
        true
    }

    pub(crate) fn forget(_: &File, _: u64, _: u64) {}
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    pub(super) fn write_at(file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(buffer, offset)
    }
}

#[cfg(windows)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.seek_read(buffer, offset)
    }

    pub(super) fn write_at(file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        file.seek_write(buffer, offset)
    }
}

/// Whether a stretch of a file is in the page cache, as far as its ends say, and letting go of one (of all, if `bytes` is
/// 0) that is there and clean.
#[cfg(target_os = "linux")]
pub(crate) use system::{forget, is_cached};
use system::{read_at, write_at};
#[cfg(not(target_os = "linux"))]
pub(crate) use system_cache::{forget, is_cached};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_where_they_were_written() {
        let file = tempfile::tempfile().unwrap();
        write_all_at(&file, b"later", 5).unwrap();
        write_all_at(&file, b"first", 0).unwrap();
        let mut found = [0; 10];
        read_exact_at(&file, &mut found, 0).unwrap();
        assert_eq!(&found, b"firstlater");
        let error = read_exact_at(&file, &mut found, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
