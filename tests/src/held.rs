//! What lies in a worker's store, seen from outside.
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::TestWorker;

const LIMIT: Duration = Duration::from_secs(120);

/// Files of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBlobs {
    /// Whole blobs with their sizes, sorted by name.
    pub whole: Vec<(PathBuf, u64)>,
    /// Beginnings of blobs with their sizes, sorted by name.
    pub partial: Vec<(PathBuf, u64)>,
}

impl HeldBlobs {
    /// Lists a store's files.
    pub fn of(store: &Path) -> Self {
        Self {
            whole: files(&store.join("blobs"), "safetensors"),
            partial: files(&store.join("partial"), "part"),
        }
    }

    /// Lists the files of a worker's store once it writes none of them: while it receives a blob it has its beginning
    /// open.
    ///
    /// # Panics
    /// If it goes on writing.
    #[track_caller]
    pub fn at_rest(worker: &TestWorker) -> Self {
        crate::until("the worker to close what it writes", LIMIT, || !writes(worker));
        Self::of(worker.store())
    }

    /// Bytes of whole blobs and of beginnings.
    pub fn all_bytes(&self) -> u64 {
        self.whole.iter().chain(&self.partial).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of whole blobs.
    pub fn whole_bytes(&self) -> u64 {
        self.whole.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of beginnings.
    pub fn partial_bytes(&self) -> u64 {
        self.partial.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Whether a worker has the beginning of a blob open; where there is no `/proc`, nobody tells, and it counts as closed.
fn writes(worker: &TestWorker) -> bool {
    let Ok(beginnings) = worker.store().join("partial").canonicalize() else { return false };
    let open = std::fs::read_dir(format!("/proc/{}/fd", worker.pid())).into_iter().flatten();
    let mut files = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    files.any(|file| file.parent() == Some(&beginnings))
}

fn files(directory: &Path, extension: &str) -> Vec<(PathBuf, u64)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<(PathBuf, u64)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let path = entry.path();
            let wanted = path.extension().is_some_and(|found| found == extension);
            wanted.then_some(())?;
            Some((path, entry.metadata().ok()?.len()))
        })
        .collect();
    files.sort();
    files
}
