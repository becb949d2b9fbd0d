//! The file of a blob under way: what of it is right, cutting off what is not, flushing it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::thread::JoinHandle;

use cake_checkpoint::{Digest, Manifest};

use super::Error;
use super::folder::For;
use super::folders::Folders;

/// Bytes after which the system is asked to write to the disk what it has, so that the flush at the
/// end of a blob is short.
const WRITEBACK_BYTES: u64 = 64 << 20;
/// Bytes after which a write waits for the flush under way, so that a slow disk never has a backlog
/// that takes minutes.
const MOST_UNFLUSHED_BYTES: u64 = 128 << 20;
/// So many zeros or more become a hole in the file: fewer would not free a block of it.
const LEAST_HOLE_BYTES: usize = 4096;

/// A partial blob on disk; the chunk under way is cut off when it is dropped.
#[derive(Debug)]
pub(super) struct PartFile {
    /// Its position is where the next bytes go, unless the file is torn.
    pub(super) file: File,
    /// Whole chunks at its start that matched their digests, in bytes.
    pub(super) verified_bytes: u64,
    /// See [`PartFile::torn`].
    torn: bool,
}

impl PartFile {
    /// Cuts the file after the bytes that are verified, and goes on from there.
    pub(super) fn over(file: File, verified_bytes: u64) -> io::Result<PartFile> {
        let mut part = PartFile { file, verified_bytes, torn: false };
        part.cut()?;
        Ok(part)
    }

    /// Writes the next bytes. Nothing but zeros becomes a hole, which takes no disk where the file system has holes, and
    /// is read as zeros everywhere.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() < LEAST_HOLE_BYTES || bytes.iter().any(|byte| *byte != 0) {
            return self.file.write_all(bytes);
        }
        let end = self.file.stream_position()? + bytes.len() as u64;
        self.file.set_len(end)?; // Nothing lies behind the position.
        self.file.seek(SeekFrom::Start(end)).map(drop)
    }

    /// Leaves what is verified, and goes on from there.
    pub(super) fn cut(&mut self) -> io::Result<()> {
        // The position first: what is written next never goes after bytes that nobody verified.
        let place = self.file.seek(SeekFrom::Start(self.verified_bytes));
        let cut = place.and_then(|_| self.file.set_len(self.verified_bytes));
        self.torn |= cut.is_err();
        cut
    }

    /// Whether a cut failed once: then nothing more may be written.
    pub(super) fn torn(&self) -> bool {
        self.torn
    }

    /// Length of the file now.
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if self.length().is_ok_and(|length| length > self.verified_bytes) {
            let _ = self.cut(); // Best effort: a torn end is found out when the blob is resumed.
        }
    }
}

/// Bytes at the start of a partial blob that match the manifest, in whole chunks; 0 if there is no
/// such file.
///
/// # Errors
/// [`Error::Io`] if the file exists and cannot be read.
pub(super) fn verified_bytes(
    folders: &Folders,
    name: &Digest,
    manifest: &Manifest,
) -> Result<u64, Error> {
    let part = &folders.part(name);
    let mut file = match folders.open(part, For::Reading) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        result => result.map_err(|cause| Error::io("open", part, cause))?,
    };
    let mut verified_bytes = 0;
    let mut chunk = Vec::new();
    for (expected, end) in manifest.chunks.iter().zip(manifest.chunk_ends()) {
        chunk.resize((end - verified_bytes) as usize, 0); // At most CHUNK_BYTES.
        match file.read_exact(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            result => result.map_err(|cause| Error::io("read", part, cause))?,
        }
        if Digest::of(&chunk) != *expected {
            break;
        }
        verified_bytes = end;
    }
    Ok(verified_bytes)
}

/// Flushes a growing file on a thread of its own, so that disk and network work at the same time.
#[derive(Debug, Default)]
pub(super) struct Writeback {
    /// Bytes written since the last flush began.
    unflushed_bytes: u64,
    running: Option<JoinHandle<io::Result<()>>>,
}

impl Writeback {
    /// Notes a write, and starts a flush if there is enough to flush and none is running.
    pub(super) fn wrote(&mut self, file: &File, bytes: usize) -> io::Result<()> {
        self.unflushed_bytes += bytes as u64;
        if self.unflushed_bytes < WRITEBACK_BYTES {
            return Ok(());
        }
        let busy = self.running.as_ref().is_some_and(|thread| !thread.is_finished());
        if busy && self.unflushed_bytes < MOST_UNFLUSHED_BYTES {
            return Ok(());
        }
        self.join()?; // Waits if the disk is slower than the network.
        let same_file = file.try_clone()?;
        let flush = move || same_file.sync_data();
        // Without a thread the flush at the end does all the work.
        self.running = std::thread::Builder::new().name("store-flush".into()).spawn(flush).ok();
        self.unflushed_bytes = 0;
        Ok(())
    }

    /// Flushes everything. A failure that the thread saw is reported here: the system tells it
    /// once.
    pub(super) fn complete(&mut self, file: &File) -> io::Result<()> {
        self.join()?;
        file.sync_all()
    }

    fn join(&mut self) -> io::Result<()> {
        match self.running.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // Flushing does not panic; if it did, the flush at the end still counts.
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// One whose first flush has failed, which shows once so many more bytes are written.
    #[cfg(test)]
    pub(super) fn failing_after(bytes: u64) -> Writeback {
        let fail = || Err(io::Error::other("the disk is gone"));
        let thread = std::thread::spawn(fail);
        while !thread.is_finished() {
            std::thread::yield_now();
        }
        let unflushed_bytes = WRITEBACK_BYTES - bytes;
        Writeback { unflushed_bytes, running: Some(thread) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_cut_leaves_the_verified_bytes_and_goes_on_after_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("part");
        std::fs::write(&path, b"right, torn").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut part = PartFile::over(file, 5).unwrap();
        part.file.write_all(b" and wrong").unwrap();
        part.cut().unwrap();
        part.file.write_all(b" too").unwrap();
        assert_eq!((part.length().unwrap(), part.torn()), (9, false));
        assert_eq!(std::fs::read(&path).unwrap(), b"right too");
        drop(part);
        assert_eq!(std::fs::read(&path).unwrap(), b"right");
    }

    #[test]
    fn zeros_are_a_hole_that_what_follows_goes_behind_and_a_cut_goes_through() {
        const HOLE: usize = 3 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("part");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut part = PartFile::over(file, 0).unwrap();
        for bytes in [b"before", &vec![0; HOLE][..], &[0; LEAST_HOLE_BYTES - 1], b"behind"] {
            part.append(bytes).unwrap();
        }
        let zeros = vec![0; HOLE + LEAST_HOLE_BYTES - 1];
        assert_eq!(std::fs::read(&path).unwrap(), [b"before", &zeros[..], b"behind"].concat());
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::fs::MetadataExt;
            let taken = part.file.metadata().unwrap().blocks() * 512;
            assert!(taken < HOLE as u64 / 2, "{taken} bytes of the disk are taken");
        }
        part.verified_bytes = 9;
        part.cut().unwrap();
        part.append(b"again").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"before\0\0\0again");
        part.verified_bytes = part.length().unwrap();
    }

    #[test]
    fn a_cut_that_fails_still_goes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("part");
        std::fs::write(&path, b"right, torn").unwrap();
        let mut file = File::open(&path).unwrap(); // Cannot be cut: it is open for reading only.
        file.seek(SeekFrom::End(0)).unwrap();
        let mut part = PartFile { file, verified_bytes: 5, torn: false };
        assert!(part.cut().is_err());
        assert_eq!((part.file.stream_position().unwrap(), part.torn()), (5, true));
    }
}
