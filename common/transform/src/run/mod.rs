//! Running a job: the one loop that all of them go through.
//!
//! Threads take units in order, so that the source is read from its beginning to its end; what each brought to its place
//! is written down, and every so often all of it is brought to the disk.

mod begin;
mod bench;
mod copy;
mod journal;
mod largest;
mod outputs;
mod rows;
#[cfg(test)]
mod tests;
mod threads;
mod units;
mod work;
mod written;

use self::begin::{begin, is_done};
use self::journal::{Journal, boot};
use self::outputs::{JOURNAL, Outputs, PART, beside, check};
use self::threads::work_off;
use self::units::Units;
use self::written::checksums;
use crate::bytes::write_all_at;
use crate::checksum::{Summed, join};
use crate::error::Error;
use crate::job::{Job, Observer, Options, Outcome};
use crate::piece::{Piece, Place};

impl Job {
    /// Writes the outputs, or what is missing of them after a run that ended early.
    ///
    /// They get their names when all is there. Until then, and also after an error, what there is has a name beside the
    /// target's that ends in `.part`.
    ///
    /// # Errors
    /// [`Error`]; after all but [`Error::Exists`], [`Error::Busy`] and [`Error::Changed`] the same job goes on where this
    /// one ended.
    pub fn run(&self, options: Options, observer: &dyn Observer) -> Result<Outcome, Error> {
        let units = Units::of(self)?;
        let identity = self.identity()?;
        if let Some(outcome) = is_done(self, &units, &identity, observer)? {
            return Ok(outcome);
        }
        let (journal, begun) = begin(self, &units, &identity, options, observer)?;
        let resumed = begun.written;
        observer.progress(resumed, begun.total);
        let (mut journal, outputs) =
            work_off(self, &units, journal, begun, options.threads, observer)?;
        self.seal(&units, &identity, &mut journal, &outputs)?;
        outputs.sync_all().inspect_err(|_| journal.refused())?;
        outputs.finish()?;
        journal.remove()?;
        Ok(Outcome { bytes: self.bytes(), resumed })
    }

    /// Refuses to write where something is in the way, before what takes long is done for the job. What an earlier run
    /// wrote that ended before its journal went is not: [`run`](Self::run) looks whether it is that.
    ///
    /// # Errors
    /// [`Error::Exists`], or [`Error::Io`] if that cannot be seen.
    pub fn check_target(&self, force: bool) -> Result<(), Error> {
        let target = self.target.path();
        let had_ended = beside(target, JOURNAL).exists() && !beside(target, PART).exists();
        if had_ended && Outputs::finished(self)?.is_some() {
            return Ok(());
        }
        check(&self.target, force)
    }

    /// Bytes of all outputs.
    fn bytes(&self) -> u64 {
        self.outputs.iter().map(|output| output.bytes).sum()
    }

    /// Writes the checksums of outputs: the journal has what they are joined from, so that nothing is read again.
    fn seal(
        &self,
        units: &Units,
        identity: &str,
        journal: &mut Journal,
        outputs: &Outputs,
    ) -> Result<(), Error> {
        let sealed: Vec<Place> = (self.pieces.iter())
            .filter_map(|piece| match piece {
                Piece::Checksum { place } => Some(*place),
                _ => None,
            })
            .collect();
        if sealed.is_empty() {
            return Ok(());
        }
        let changed = || Error::Changed { path: outputs.part().into() };
        let done = journal.earlier(identity, &boot())?.ok_or_else(changed)?.done;
        let mut stretches: Vec<Vec<Summed>> = vec![Vec::new(); self.outputs.len()];
        for number in 0..units.count() {
            let places = self.places(&units.get(number));
            let found = done.get(&number).and_then(|text| checksums(text)).ok_or_else(changed)?;
            if found.len() != places.len() {
                return Err(changed());
            }
            for ((Place { output, offset }, bytes), crc32) in places.into_iter().zip(found) {
                stretches[output].push(Summed { offset, bytes, crc32 });
            }
        }
        for place in sealed {
            let mut before = std::mem::take(&mut stretches[place.output]);
            before.retain(|summed| summed.offset < place.offset);
            let checksum = join(before, place.offset).to_le_bytes();
            write_all_at(outputs.file(place.output), &checksum, place.offset)
                .map_err(|cause| Error::io("write", outputs.path(place.output), cause))?;
        }
        Ok(())
    }
}
