//! Inputs from golden models.

use std::path::Path;

use cake_checkpoint::ModelSpec;

/// The files of this name, of every golden model that has one.
pub(super) fn golden_files(name: &str) -> Vec<Vec<u8>> {
    let read = |family: &Path| std::fs::read(family.join(name)).ok();
    let families = std::fs::read_dir(crate::golden::directory()).expect("golden data is there");
    let mut paths: Vec<_> = families.flatten().map(|entry| entry.path()).collect();
    paths.sort(); // The same inputs on every file system.
    paths.iter().filter_map(|path| read(path)).collect()
}

/// A golden model.
pub(super) fn golden(name: &str) -> ModelSpec {
    let config = std::fs::read(crate::golden::directory().join(name).join("config.json"));
    ModelSpec::parse(&config.expect("golden data is there")).expect("a golden model")
}
