//! What a thread of a job works with.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::largest::Largest;
use super::outputs::Outputs;
use super::written::Written;
use crate::error::Error;
use crate::job::{Job, Observer};
use crate::piece::Piece;

/// What a thread needs, and its buffers, used again from unit to unit.
pub(super) struct Bench<'a> {
    pub(super) job: &'a Job,
    pub(super) outputs: &'a Outputs,
    pub(super) largest: &'a Largest,
    pub(super) observer: &'a dyn Observer,
    /// Whether another thread failed.
    pub(super) stop: &'a AtomicBool,
    /// Bytes on their way.
    pub(super) buffer: Vec<u8>,
    /// What some rows are stored in, part by part.
    pub(super) read: Vec<Vec<u8>>,
    /// Whether the job ends in a checksum.
    has_checksum: bool,
    /// Some rows decoded.
    pub(super) numbers: Vec<f32>,
    /// What some rows become, part by part.
    pub(super) written: Vec<Vec<u8>>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        job: &'a Job,
        outputs: &'a Outputs,
        largest: &'a Largest,
        observer: &'a dyn Observer,
        stop: &'a AtomicBool,
    ) -> Bench<'a> {
        let (buffer, read, numbers, written) = Default::default();
        let has_checksum = job.pieces.iter().any(|piece| matches!(piece, Piece::Checksum { .. }));
        Bench {
            job,
            outputs,
            largest,
            observer,
            stop,
            buffer,
            read,
            has_checksum,
            numbers,
            written,
        }
    }

    /// What is to become of a unit: nothing is written of it yet.
    pub(super) fn written(&self) -> Written {
        Written::new(self.has_checksum)
    }

    /// Whether to go on.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.stop.load(Ordering::Relaxed) || self.observer.is_cancelled() {
            true => Err(Error::Stopped { done: 0, total: 0 }),
            false => Ok(()),
        }
    }

    /// What a write that failed means.
    pub(super) fn write_failed(&self, output: usize, cause: io::Error) -> Error {
        Error::io("write", self.outputs.path(output), cause)
    }
}
