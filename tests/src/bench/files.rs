//! Bytes on disk: what the page cache has of them, and how many more fit.
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{Advice, fadvise, statvfs};

/// The files of weights of `model`: the safetensors files in a directory, or a file that is all of it.
pub(crate) fn weights(model: &Path) -> Result<Vec<PathBuf>> {
    if model.is_file() {
        return Ok(vec![model.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(model)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Brings a model's weights into the page cache by reading them.
pub(crate) fn warm(model: &Path) -> Result<()> {
    for path in weights(model)? {
        // A buffer of its own: between a file and a sink, `io::copy` may find a way not to read.
        let mut file = std::io::BufReader::with_capacity(1 << 20, File::open(path)?);
        std::io::copy(&mut file, &mut std::io::sink())?;
    }
    Ok(())
}

/// Asks the system to drop a model's weights from the page cache.
pub(crate) fn cool(model: &Path) -> Result<()> {
    for path in weights(model)? {
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
pub(crate) fn flush() {
    rustix::fs::sync();
}
