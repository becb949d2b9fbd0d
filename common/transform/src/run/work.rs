//! A unit brought to its place, and looked at there.

use super::bench::Bench;
use super::units::Unit;
use super::{copy, rows};
use crate::bytes::write_all_at;
use crate::error::Error;
use crate::piece::{Piece, Place};

/// Brings a unit to its place. Returns the digest of its bytes.
pub(super) fn work(bench: &mut Bench<'_>, unit: &Unit) -> Result<String, Error> {
    bench.check()?;
    let job = bench.job;
    let digest = match &job.pieces[unit.piece] {
        Piece::Known { bytes, place } => {
            write_all_at(bench.outputs.file(place.output), bytes, place.offset)
                .map_err(|cause| bench.write_failed(place.output, cause))?;
            blake3::hash(bytes)
        }
        Piece::Copy { from, place } => copy::copy(bench, *from, *place, unit.range.clone())?,
        Piece::Rows(matrix) => rows::rows(bench, matrix, unit.range.clone())?,
        Piece::Checksum { .. } => blake3::hash(b""), // It has no units.
    };
    Ok(shown(digest))
}

/// Writes the checksum of all that is before it.
pub(super) fn seal(bench: &mut Bench<'_>, place: Place) -> Result<(), Error> {
    let mut hasher = crc32fast::Hasher::new();
    read(bench, Place { offset: 0, ..place }, place.offset, |bytes| hasher.update(bytes))?;
    write_all_at(bench.outputs.file(place.output), &hasher.finalize().to_le_bytes(), place.offset)
        .map_err(|cause| bench.write_failed(place.output, cause))
}

/// The digest of what is in a unit's place now.
pub(super) fn look(bench: &mut Bench<'_>, unit: &Unit) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    for (place, bytes) in bench.job.pieces[unit.piece].places(&unit.range) {
        read(bench, place, bytes, |bytes| {
            hasher.update(bytes);
        })?;
    }
    Ok(shown(hasher.finalize()))
}

/// Reads what was written, in small pieces.
fn read(
    bench: &mut Bench<'_>,
    place: Place,
    bytes: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut done = 0;
    while done < bytes {
        bench.check()?;
        let piece = (bytes - done).min(1 << 20) as usize;
        bench.buffer.resize(piece, 0);
        let file = bench.outputs.file(place.output);
        crate::bytes::read_exact_at(file, &mut bench.buffer, place.offset + done)
            .map_err(|cause| Error::io("read", bench.outputs.path(place.output), cause))?;
        each(&bench.buffer);
        done += piece as u64;
    }
    Ok(())
}

/// Half of a digest: nobody is kept from lying here, only mistakes are found.
fn shown(digest: blake3::Hash) -> String {
    digest.to_hex()[..32].to_owned()
}
