//! A job: what is written, and from what.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::piece::{Piece, Rows};
use crate::source::Source;

/// Outputs of a known length, and the pieces that fill them.
#[derive(Debug)]
pub struct Job {
    /// What is read.
    pub source: Source,
    /// Where the outputs go.
    pub target: Target,
    /// The outputs; no two pieces fill the same byte of one, and what none fills is zeros.
    pub outputs: Vec<Output>,
    /// In the order in which they are read; no piece is read twice, nor two of a file in turns.
    pub pieces: Vec<Piece>,
}

/// Where outputs go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The only output is this file.
    File(PathBuf),
    /// The outputs are files of this directory.
    Directory(PathBuf),
}

/// One file to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Its name in the target directory; a file by itself has the target's. It may have folders, with `/`.
    pub name: String,
    /// Its length. Bytes that no piece covers are zeros.
    pub bytes: u64,
}

/// How a job is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether an output that is there already is replaced.
    pub force: bool,
    /// How many threads read, encode and write; at least 1.
    pub threads: usize,
}

/// Who is told how far a job is, from any of its threads.
pub trait Observer: Sync {
    /// So many bytes of the outputs are there, of so many in all.
    fn progress(&self, done: u64, total: u64);

    /// So many bytes of the source were compared with its checksum, of so many in all; before anything is written.
    fn checked(&self, done: u64, total: u64) {
        let _ = (done, total);
    }

    /// Whether to stop; asked between two small pieces of work.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// What a job did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Bytes of all outputs.
    pub bytes: u64,
    /// Of these, how many were there from an earlier run.
    pub resumed: u64,
}

impl Job {
    /// A text that changes whenever the outputs would: under which a job that ended early goes on.
    ///
    /// # Errors
    /// [`Error::Io`] if a file's metadata cannot be read.
    pub(crate) fn identity(&self) -> Result<String, Error> {
        let mut hasher = blake3::Hasher::new();
        let mut add = |text: String| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for file in &self.source.files {
            let failed = |cause| Error::io("read", &file.path, cause);
            let metadata = file.handle.metadata().map_err(failed)?;
            let changed = metadata.modified().map_err(failed)?;
            add(format!("{:?} {} {changed:?}", file.digest, metadata.len()));
        }
        for Output { name, bytes } in &self.outputs {
            add(format!("{name:?} {bytes}"));
        }
        for piece in &self.pieces {
            add(match piece {
                Piece::Known { bytes, place } => format!("{place:?} {}", blake3::hash(bytes)),
                Piece::Copy { from, place } => format!("{place:?} {from:?}"),
                Piece::Checksum { place } => format!("{place:?} crc32"),
                Piece::Rows(rows) => {
                    let Rows { name, encoding, parts, shape, order, add, form, places } = rows;
                    let (add, form) = (add.to_bits(), form.identity());
                    format!(
                        "{places:?} {name:?} {encoding} {parts:?} {shape:?} {order:?} {add} {form}"
                    )
                }
            });
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

impl Target {
    /// Its path.
    pub fn path(&self) -> &Path {
        let (Target::File(path) | Target::Directory(path)) = self;
        path
    }
}
