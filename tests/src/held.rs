//! What lies in a worker's store, seen from outside.
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A store in which nothing changed for this long is at rest: a writer that lives writes more often.
const REST: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_secs(10);

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

    /// Lists a store's files once nobody writes there any more.
    ///
    /// # Panics
    /// If somebody keeps writing.
    #[track_caller]
    pub fn at_rest(store: &Path) -> Self {
        let (mut last, mut since) = (Self::of(store), Instant::now());
        crate::until("the store to be at rest", LIMIT, || {
            let now = Self::of(store);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() >= REST
        });
        last
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
