//! A program that keeps models on this machine, under names of its own.

use std::path::{Path, PathBuf};

use super::kept_error::KeptError;

/// A program that keeps models in folders of its own. One more is a file beside this one, and a line in
/// [`PROGRAMS`](super::list::PROGRAMS).
pub(super) struct Program {
    /// What precedes the model's name and a colon where a model is meant that this program keeps.
    pub(super) scheme: &'static str,
    /// What people call it.
    pub(super) called: &'static str,
    /// Its folders on this machine, in the order in which they are looked into.
    pub(super) folders: fn() -> Vec<PathBuf>,
    /// Where in one folder the model of that name is, a file or a directory; `None` if it is not.
    pub(super) find: fn(folder: &Path, name: &str) -> Result<Option<PathBuf>, KeptError>,
    /// The names of all models in a folder.
    pub(super) names: fn(folder: &Path) -> Vec<String>,
}
