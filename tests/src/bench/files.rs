//! Bytes on disk: what the page cache has of them, and how many more fit.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise, statvfs};

/// The safetensors files in `directory`.
pub(crate) fn weights(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Brings a model's weights into the page cache by reading them.
pub(crate) fn warm(directory: &Path) -> Result<()> {
    for path in weights(directory)? {
        // A buffer of its own: between a file and a sink, `io::copy` may find a way not to read.
        let mut file = std::io::BufReader::with_capacity(1 << 20, File::open(path)?);
        std::io::copy(&mut file, &mut std::io::sink())?;
    }
    Ok(())
}

/// Asks the system to drop a model's weights from the page cache.
pub(crate) fn cool(directory: &Path) -> Result<()> {
    for path in weights(directory)? {
        let file = File::open(path)?;
        file.sync_all()?; // What is not on the disk yet cannot be dropped.
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Bytes that may still be written where `directory` is.
pub(crate) fn free_disk(directory: &Path) -> Result<u64> {
    let stat = statvfs(directory)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Has everything written to the disk that waits for it, so that nobody pays for it later.
pub(crate) fn settle() {
    rustix::fs::sync();
}

/// Free memory below which the page cache counts as full, as it is on a machine that has been up
/// for a while.
const LITTLE_FREE_BYTES: u64 = 768 << 20;

/// Fills free memory with page cache, read from a file of zeros without blocks at `path`, from
/// `cursor` on.
///
/// A virtual machine may give free memory back to its host within seconds, and getting it again was
/// seen to slow a first write to 0.4 GB/s from 5. Whoever comes first would pay for all. With the
/// cache full, new pages take the place of old ones, for everybody alike.
pub(crate) fn fill_memory(path: &Path, cursor: &AtomicU64) -> Result<()> {
    const PIECE_BYTES: u64 = 32 << 20;
    // Twice the memory: what comes next is never what is cached already.
    let total = (2 * memory("MemTotal:")?).next_multiple_of(PIECE_BYTES);
    File::options().create(true).truncate(false).write(true).open(path)?.set_len(total)?;
    let file = File::open(path)?;
    let read = || -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        while memory("MemFree:")? > LITTLE_FREE_BYTES {
            let start = cursor.fetch_add(PIECE_BYTES, Ordering::Relaxed) % total;
            for offset in (start..start + PIECE_BYTES).step_by(buffer.len()) {
                file.read_exact_at(&mut buffer, offset)?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism()?.get();
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("reading does not panic"))
    })
}

/// A line of /proc/meminfo, in bytes.
fn memory(name: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = number.with_context(|| format!("no {name} in /proc/meminfo"))?.parse()?;
    Ok(kib << 10)
}
