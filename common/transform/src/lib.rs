//! Checkpoints turned into other files: merged, split, converted.
//!
//! Start reading at [`Job`]: outputs of a known length, and the [`Piece`]s that fill them, in the order of the files that
//! they are read from. What makes jobs are plain functions over a [`Source`] (merge, split, convert); what runs
//! them is one loop that knows no format.
//!
//! Invariants:
//! * Memory does not grow with the model: a job is its index, and what is read is written before more is read.
//! * Every byte of the source is read once (once more where all of a matrix decides about each number, and before all else
//!   where a file ends in a checksum), and written once, to its final place in a file that has its final name when all is
//!   there.
//! * A job that ended early, however it ended, goes on where it was; what it was then is what it gives, to the bit.
//! * No network, no runtime.

pub mod apr;
mod bytes;
mod checksum;
mod compare;
pub mod convert;
pub mod digests;
mod error;
mod foreign;
mod form;
mod gather;
pub mod gguf;
mod hub;
mod job;
mod numbers;
mod piece;
mod read;
mod run;
mod safetensors;
mod scan;
mod source;
mod stats;
#[cfg(test)]
mod testing;
mod texts;

pub use compare::{By, Changed, Difference, compare};
pub use error::{Error, TextFault, Unsupported};
pub use form::{FloatForm, Form};
pub use gather::{merge, split};
pub use job::{Job, Observer, Options, Outcome, Output, Target};
pub use numbers::Numbers;
pub use piece::{Order, Piece, Place, Rows, Stretch};
pub use safetensors::{FileLayout, TensorToWrite};
pub use source::{Source, SourceFile};
pub use stats::{Stats, stats};
