//! The crate's error.

use std::io;
use std::path::{Path, PathBuf};

use cake_checkpoint::EncodeError;
use cake_checkpoint::units::format_bytes;

/// What helps where blocks or codes of another format are to be written.
pub(crate) const PLAIN_FIRST: &str =
    "; convert with --encode f32, f16 or bf16 makes plain numbers of it";

/// Why a checkpoint could not be turned into something else. Its text is a whole sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// The system refused.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was tried: "read", "write", "rename".
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The disk is full, or has less room than the output needs.
    #[error(
        "no room for {}: {} more are needed there and {} are free; what is written so far stays, the same command goes on with it",
        path.display(), format_bytes(*needed), format_bytes(*free)
    )]
    NoRoom {
        /// What was to be written.
        path: PathBuf,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The output is there already.
    #[error("{} is there already; {hint}", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// Another process writes the same output.
    #[error("another process is writing {}", path.display())]
    Busy {
        /// The output.
        path: PathBuf,
    },
    /// Somebody asked to stop.
    #[error("stopped with {} of {} written; the same command goes on where this one stopped",
        format_bytes(*done), format_bytes(*total))]
    Stopped {
        /// Bytes of the outputs that are there.
        done: u64,
        /// Bytes of the outputs.
        total: u64,
    },
    /// Somebody asked to stop what writes nothing.
    #[error("interrupted")]
    Interrupted,
    /// A file of the source is not what it was when the job was made.
    #[error("{} is shorter than when it was opened", path.display())]
    Shrunk {
        /// The file.
        path: PathBuf,
    },
    /// What an earlier run wrote is not what it wrote.
    #[error(
        "{} was changed since it was written: delete it, and the same command begins again",
        path.display()
    )]
    Changed {
        /// The unfinished output.
        path: PathBuf,
    },
    /// A text of the model cannot be used.
    #[error("cannot use {}: {cause}", path.display())]
    Text {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        cause: TextFault,
    },
    /// Numbers that the form does not have.
    #[error("tensor {tensor:?}: {cause}")]
    Encode {
        /// Which tensor.
        tensor: String,
        /// What is wrong.
        cause: EncodeError,
    },
    /// A row that is too long to be held.
    #[error("a row of tensor {tensor:?} has {}, more than the {} that are held at once",
        format_bytes(*bytes), format_bytes(*most))]
    LongRow {
        /// Which tensor.
        tensor: String,
        /// Bytes of a row, or of rows that belong together.
        bytes: u64,
        /// Most that are held.
        most: u64,
    },
    /// What was asked for cannot be had from this source.
    #[error("{0}")]
    Unsupported(Unsupported),
}

/// What is wrong with a text.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum TextFault {
    #[error("it has {}, more than the {} that are read", format_bytes(*bytes), format_bytes(*most))]
    TooLong { bytes: u64, most: u64 },
    #[error("it is not UTF-8")]
    NotUtf8,
    #[error("it is not the JSON that it should be: {0}")]
    Json(serde_json::Error),
}

/// What cannot be turned into what.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Unsupported {
    #[error("tensor {tensor:?} is stored as {found}, which {format} does not have{hint}")]
    Encoding { tensor: String, found: String, format: &'static str, hint: &'static str },
    #[error(
        "tensor {tensor:?} is stored as {found}, parts of which files have in another form; {what} of such are not made"
    )]
    Across { tensor: String, found: String, what: &'static str },
    #[error("{architecture} cannot be written as {format}{hint}")]
    Architecture { architecture: String, format: &'static str, hint: &'static str },
    #[error(
        "{}: GGUF files have rows and norms in a form of their own, which is run and not yet turned into {format}",
        path.display()
    )]
    Form { path: PathBuf, format: &'static str },
    #[error("{format} needs {what}, and the model has none")]
    Missing { format: &'static str, what: String },
    #[error("{format} cannot say {what}")]
    Cannot { format: &'static str, what: String },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Error {
        Error::Io { action, path: path.into(), cause }
    }
}

impl From<Unsupported> for Error {
    fn from(what: Unsupported) -> Error {
        Error::Unsupported(what)
    }
}
