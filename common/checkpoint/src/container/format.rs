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

    /// Whether one file has all of a model: then people know the model by the file's name, else by its directory's.
    fn is_whole_model(&self) -> bool {
        false
    }
}
