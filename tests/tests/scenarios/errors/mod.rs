//! Every failure is one clear sentence, a non-zero exit, and loses nothing.
//!
//! One module per kind of failure; [`cake_tests::Finished::refusal`] checks the sentence.
mod arguments;
mod checkpoints;
mod cluster;
mod disk;
mod leases;
mod pushes;
mod streams;
mod versions;

use std::path::Path;

use tempfile::TempDir;

/// A copy of a golden checkpoint, to be spoilt.
fn copy_of(name: &str) -> TempDir {
    let home = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    let source = cake_tests::golden::directory().join(name);
    for entry in std::fs::read_dir(source).expect("the golden checkpoint is there") {
        let entry = entry.expect("a listed file");
        std::fs::copy(entry.path(), home.path().join(entry.file_name())).expect("copied");
    }
    home
}

/// Changes a checkpoint's config.json.
fn edit_config(model: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let file = model.join("config.json");
    let text = std::fs::read(&file).expect("config.json is there");
    let mut config = serde_json::from_slice(&text).expect("it is JSON");
    edit(&mut config);
    std::fs::write(&file, config.to_string()).expect("written");
}

/// Checks that a sentence contains all of these.
#[track_caller]
pub(crate) fn assert_says(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{sentence:?} does not say {part:?}");
    }
}

/// An address where nobody listens.
fn dead_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound just above").to_string()
}
