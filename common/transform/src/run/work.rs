//! A unit brought to its place, and looked at there.

use super::bench::Bench;
use super::units::{Pass, Unit};
use super::{copy, largest, rows};
use crate::bytes::{read_exact_at, write_all_at};
use crate::error::Error;
use crate::piece::Piece;

/// How much of what was written is read at once.
const LOOK_BYTES: u64 = 1 << 20;

/// Brings a unit to its place, or looks at it first. Returns what the journal has of it.
pub(super) fn work(bench: &mut Bench<'_>, unit: &Unit) -> Result<String, Error> {
    bench.check()?;
    let job = bench.job;
    let mut written = bench.written();
    match (&job.pieces[unit.piece], unit.pass) {
        (Piece::Rows(matrix), Pass::Look) => {
            return Ok(largest::to_text(rows::largest(bench, matrix, &unit.range)?));
        }
        (Piece::Rows(matrix), Pass::Write) => {
            let largest = bench.largest.of(unit.piece, || bench.check())?;
            written = rows::write(bench, matrix, &unit.range, largest)?;
        }
        (Piece::Copy { from, place }, _) => {
            written = copy::copy(bench, *from, *place, unit.range.clone())?;
        }
        (Piece::Known { bytes, place }, _) => {
            write_all_at(bench.outputs.file(place.output), bytes, place.offset)
                .map_err(|cause| bench.write_failed(place.output, cause))?;
            written.place();
            written.add(bytes);
        }
        (Piece::Checksum { .. }, _) => {} // It has no units.
    }
    Ok(written.into_text())
}

/// What the journal should have of a unit that was written, by what is in its place now.
pub(super) fn look(bench: &mut Bench<'_>, unit: &Unit) -> Result<String, Error> {
    let mut written = bench.written();
    for (place, bytes) in bench.job.places(unit) {
        written.place();
        let mut done = 0;
        while done < bytes {
            bench.check()?;
            let piece = (bytes - done).min(LOOK_BYTES) as usize;
            bench.buffer.resize(piece, 0);
            let file = bench.outputs.file(place.output);
            read_exact_at(file, &mut bench.buffer, place.offset + done)
                .map_err(|cause| Error::io("read", bench.outputs.path(place.output), cause))?;
            written.add(&bench.buffer);
            done += piece as u64;
        }
    }
    Ok(written.into_text())
}
