//! Which golden checkpoints there are: tests of several crates ask, and have this file in common.
use std::path::{Path, PathBuf};

/// Golden checkpoints of the families that run, ascending: each directory in `golden` with answers.
///
/// # Panics
/// If there are none.
pub(crate) fn names(golden: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(golden).expect("the directory of golden checkpoints");
    let paths = entries.map(|entry| entry.expect("a directory that can be read").path());
    let answered = paths.filter(|path| path.join("expected.json").is_file());
    let name = |path: PathBuf| path.file_name().and_then(|name| Some(name.to_str()?.to_owned()));
    let mut names: Vec<String> = answered.filter_map(name).collect();
    names.sort();
    assert!(!names.is_empty(), "there is no golden checkpoint in {}", golden.display());
    names
}
