//! Memory full of page cache, so that no measurement pays for memory that nobody had before.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use cake_checkpoint::units::format_bytes;

/// Free memory below which the page cache counts as full, as it is on a machine that has been up
/// for a while.
const LITTLE_FREE_BYTES: u64 = 768 << 20;
/// What a thread reads before it looks again at how much memory is free.
const PIECE_BYTES: u64 = 32 << 20;

/// Zeros to fill memory with: a file without a name and without blocks.
#[derive(Debug)]
pub(crate) struct Zeros {
    file: File,
    /// Its length, a multiple of [`PIECE_BYTES`].
    bytes: u64,
    /// How far it was read; it goes round.
    cursor: AtomicU64,
}

impl Zeros {
    /// A file in `directory`, which must be on a real disk, twice as long as memory: what is read
    /// next is never what is cached already.
    pub(crate) fn new(directory: &Path) -> Result<Zeros> {
        Zeros::of(directory, 2 * memory_bytes("MemTotal")?)
    }

    fn of(directory: &Path, least_bytes: u64) -> Result<Zeros> {
        let bytes = least_bytes.next_multiple_of(PIECE_BYTES);
        let file = tempfile::tempfile_in(directory)
            .and_then(|file| file.set_len(bytes).map(|()| file))
            .with_context(|| format!("cannot make a file in {}", directory.display()))?;
        Ok(Zeros { file, bytes, cursor: AtomicU64::new(0) })
    }

    /// Fills free memory with page cache. Where that does not work (a control group smaller than
    /// the free memory, a system that keeps more free) it says so and leaves it at that.
    ///
    /// A virtual machine may give free memory back to its host within seconds, and getting it again
    /// was seen to slow a first write to 0.4 GB/s from 5. Whoever comes first would pay for all.
    /// With the cache full, new pages take the place of old ones, for everybody alike.
    pub(crate) fn fill_memory(&self) -> Result<()> {
        let much_free = || Ok(memory_bytes("MemFree")? > LITTLE_FREE_BYTES);
        let read_bytes = self.read_while(&much_free)?;
        if read_bytes == self.bytes && much_free()? {
            let read = format_bytes(read_bytes);
            eprintln!("  memory does not fill with page cache, not by reading {read} of zeros");
        }
        Ok(())
    }

    /// Reads on while `more` says so, each byte of the file at most once. Returns the bytes read.
    fn read_while(&self, more: &(dyn Fn() -> Result<bool> + Sync)) -> Result<u64> {
        let pieces_read = AtomicU64::new(0);
        let read = || -> Result<()> {
            let mut buffer = vec![0; 1 << 20];
            while more()? {
                if pieces_read.fetch_add(1, Ordering::Relaxed) >= self.bytes / PIECE_BYTES {
                    break;
                }
                let start = self.cursor.fetch_add(PIECE_BYTES, Ordering::Relaxed) % self.bytes;
                for offset in (start..start + PIECE_BYTES).step_by(buffer.len()) {
                    self.file.read_exact_at(&mut buffer, offset)?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism()?.get();
            let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
            let join = |reader: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                reader.join().expect("reading does not panic")
            };
            readers.into_iter().try_for_each(join)
        })?;
        // Every thread that comes too late counts a piece that it does not read.
        Ok(pieces_read.into_inner().saturating_mul(PIECE_BYTES).min(self.bytes))
    }
}

/// A line of /proc/meminfo, in bytes.
pub(crate) fn memory_bytes(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let values = text.lines().filter_map(|line| line.split_once(':'));
    let value = values.filter(|(key, _)| *key == name).find_map(|(_, value)| {
        let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    });
    value.with_context(|| format!("no {name} in /proc/meminfo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_never_fills_ends_the_filling() {
        let directory = tempfile::tempdir().unwrap();
        let zeros = Zeros::of(directory.path(), PIECE_BYTES + 1).unwrap();
        assert_eq!(zeros.read_while(&|| Ok(true)).unwrap(), 2 * PIECE_BYTES);
        assert_eq!(zeros.cursor.load(Ordering::Relaxed), 2 * PIECE_BYTES);
        assert_eq!(zeros.read_while(&|| Ok(true)).unwrap(), 2 * PIECE_BYTES, "the file goes round");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn memory_that_is_full_takes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let zeros = Zeros::of(directory.path(), PIECE_BYTES).unwrap();
        assert_eq!(zeros.read_while(&|| Ok(false)).unwrap(), 0);
        assert_eq!(zeros.cursor.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_line_of_meminfo_is_found_by_its_whole_name() {
        let [total, free] = ["MemTotal", "MemFree"].map(|name| memory_bytes(name).unwrap());
        assert!(total > free && total.is_multiple_of(1 << 10), "{total} {free}");
        assert!(memory_bytes("Mem").is_err());
    }
}
