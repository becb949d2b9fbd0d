//! What a container is.

use std::fmt::Debug;
use std::path::Path;

use super::contents::{Contents, Stored};
use crate::error::Error;

/// A file format that models come in. A container is a folder beside this file, and a line in
/// [`CONTAINERS`](super::CONTAINERS).
///
/// It gives what there is and does not know what it is for: it reads headers, never weights, and decodes nothing.
pub trait Container: Debug + Sync {
    /// Whether this is the format of what lies at `path`, a file or a directory that is there.
    fn recognise(&self, path: &Path) -> bool;

    /// Opens what lies at `path`, and checks all that it says of itself.
    ///
    /// # Errors
    /// [`Error`], naming the file, what was expected and what was found.
    fn open(&self, path: &Path) -> Result<Contents, Error>;

    /// The same without asking what model it is: what this project does not run has files, too.
    ///
    /// # Errors
    /// As [`Container::open`], but for what makes it no model that runs.
    fn stored(&self, path: &Path) -> Result<Stored, Error>;

    /// What people know the model in the file at `path` by, where that file says which model it is; `None` where they know it by
    /// its directory's name.
    fn model_name(&self, _path: &Path) -> Option<String> {
        None
    }

    /// Whether its tensors have the numbers and the order of rows that the Hub's have, so that bytes may be moved to these as they
    /// lie.
    fn is_in_hub_form(&self) -> bool {
        true
    }
}
