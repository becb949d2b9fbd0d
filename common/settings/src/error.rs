//! Why settings cannot be used.

use std::path::PathBuf;

/// A settings file that cannot be used: one sentence that begins with its name and line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is named, and not there.
    #[error("there is no settings file {path}")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("cannot read the settings in {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is longer than settings are.
    #[error("the settings in {path} have more than {most} bytes")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How many are read.
        most: u64,
    },
    /// It is no TOML.
    #[error("{at}: {reason}")]
    Syntax {
        /// File and line.
        at: At,
        /// What the parser says.
        reason: String,
    },
    /// A key outside of all sections.
    #[error("{at}: {key:?} stands in no section: put it below one, such as [{example}]")]
    NoSection {
        /// File and line.
        at: At,
        /// The key.
        key: String,
        /// A section.
        example: String,
    },
    /// A section that no command reads.
    #[error("{at}: there is no section [{found}]; the nearest is [{nearest}]")]
    UnknownSection {
        /// File and line.
        at: At,
        /// As written.
        found: String,
        /// The one that is most like it.
        nearest: String,
    },
    /// A person asks for a section that there is not.
    #[error("there is no section {found:?}; the nearest is {nearest:?}")]
    NoSuchSection {
        /// As typed.
        found: String,
        /// The one that is most like it.
        nearest: String,
    },
    /// A key that no option is called.
    #[error("{at}: [{section}] has no {found:?}; the nearest is {nearest:?}")]
    UnknownKey {
        /// File and line.
        at: At,
        /// Its section.
        section: String,
        /// As written.
        found: String,
        /// The one that is most like it.
        nearest: String,
    },
    /// A value of the wrong type.
    #[error("{at}: {key} takes {expected}, not {found}")]
    Type {
        /// File and line.
        at: At,
        /// The key.
        key: String,
        /// What it takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// A value of the right type that the option does not take.
    #[error("{at}: {key} cannot be {found:?}: {reason}")]
    Value {
        /// File and line.
        at: At,
        /// The key.
        key: String,
        /// As written.
        found: String,
        /// What the option says.
        reason: String,
    },
}

/// A line of a file, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The file.
    pub path: PathBuf,
    /// The line.
    pub line: usize,
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}
