//! Pieces cut into units: what one thread reads, writes and reports at a time.

use std::ops::Range;

use crate::bytes::BLOCK_BYTES;
use crate::error::Error;
use crate::job::Job;
use crate::piece::{Piece, Place, Rows};

/// At least about how many units a job has: what a run that was killed may have to do again, for each thread, is one of so
/// many.
const UNITS: u64 = 2048;
/// A unit is not smaller, as each costs some calls of the system and a line of the journal.
const LEAST_UNIT: u64 = 64 << 10;
/// Most that a unit has, unless one row has more: each thread holds a unit, in several forms, so this bounds memory
/// whatever a model's size.
const MOST_UNIT: u64 = 1 << 20;
/// Most that rows which belong together may have.
const MOST_BYTES: u64 = 64 << 20;

/// A part of a piece: bytes of it, or rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    /// Index into the job's pieces.
    pub(super) piece: usize,
    /// Which bytes, or rows.
    pub(super) range: Range<u64>,
    /// What is done with them.
    pub(super) pass: Pass,
}

/// How often something is gone through: a matrix of which all numbers decide about each has two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// The largest magnitude is looked for; nothing is written.
    Look,
    /// It is written.
    Write,
}

/// All units of a job, by number; a number says the same unit in every run of a job.
#[derive(Debug)]
pub(super) struct Units {
    /// For each piece: how much of it a unit is, and the number of its first.
    pieces: Vec<Cut>,
    count: u32,
}

#[derive(Debug)]
struct Cut {
    length: u64,
    step: u64,
    first: u32,
    /// How many of its units, the first ones, only look.
    looks: u32,
}

impl Units {
    pub(super) fn of(job: &Job) -> Result<Units, Error> {
        let total = job.pieces.iter().map(source_bytes).fold(0, u64::saturating_add);
        let unit_bytes = (total / UNITS).clamp(LEAST_UNIT, MOST_UNIT).next_multiple_of(BLOCK_BYTES);
        let mut pieces = Vec::with_capacity(job.pieces.len());
        let mut count = 0u32;
        for piece in &job.pieces {
            let (length, step) = match piece {
                Piece::Known { bytes, .. } => (bytes.len() as u64, u64::MAX),
                Piece::Copy { from, .. } => (from.bytes, unit_bytes),
                Piece::Rows(rows) if rows.shape[1] == 0 => (0, 1),
                Piece::Rows(rows) => (rows.shape[0], rows_at_once(rows, unit_bytes)?),
                Piece::Checksum { .. } => (0, 1), // Written when all units are done.
            };
            // Units have 64 KiB or are a piece: four thousand million of them are in no computer's files.
            let writes = u32::try_from(length.div_ceil(step)).unwrap_or(u32::MAX);
            let looks = if piece.needs_largest() { writes } else { 0 };
            pieces.push(Cut { length, step, first: count, looks });
            count = count.saturating_add(looks).saturating_add(writes);
        }
        Ok(Units { pieces, count })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The unit of that number, which must be below the count.
    pub(super) fn get(&self, number: u32) -> Unit {
        // The last piece whose first unit is not after it; pieces without units are passed over.
        let piece = self.pieces.partition_point(|cut| cut.first <= number) - 1;
        let Cut { length, step, first, looks } = self.pieces[piece];
        let inside = number - first;
        let (pass, inside) = match inside.checked_sub(looks) {
            None => (Pass::Look, inside),
            Some(inside) => (Pass::Write, inside),
        };
        let start = u64::from(inside).saturating_mul(step);
        Unit { piece, range: start..start.saturating_add(step).min(length), pass }
    }

    /// The pieces that are looked at before they are written, and how many units that takes.
    pub(super) fn looks(&self) -> impl Iterator<Item = (usize, u32)> {
        let pieces = self.pieces.iter().enumerate();
        pieces.filter(|(_, cut)| cut.looks > 0).map(|(piece, cut)| (piece, cut.looks))
    }
}

/// Bytes that a piece reads.
fn source_bytes(piece: &Piece) -> u64 {
    match piece {
        Piece::Known { .. } | Piece::Checksum { .. } => 0,
        Piece::Copy { from, .. } => from.bytes,
        Piece::Rows(rows) => rows.parts.iter().map(|(_, part)| part.bytes).sum(),
    }
}

/// How many rows a unit has: whole blocks of rows that change places.
fn rows_at_once(rows: &Rows, unit_bytes: u64) -> Result<u64, Error> {
    let block = rows.order.block().max(1);
    // What is read of a row, or what it becomes: packed weights grow to several times their size.
    let written: u64 = rows.form.row_bytes(rows.shape[1]).iter().sum();
    let bytes = rows.source_row_bytes().max(written).saturating_mul(block);
    if bytes > MOST_BYTES {
        return Err(Error::LongRow { tensor: rows.name.clone(), bytes, most: MOST_BYTES });
    }
    Ok((unit_bytes / bytes.max(1)).max(1).saturating_mul(block))
}

impl Job {
    /// What a unit fills.
    pub(super) fn places(&self, unit: &Unit) -> Vec<(Place, u64)> {
        match unit.pass {
            Pass::Look => Vec::new(),
            Pass::Write => self.pieces[unit.piece].places(&unit.range),
        }
    }
}

impl Piece {
    fn needs_largest(&self) -> bool {
        matches!(self, Piece::Rows(rows) if rows.form.needs_largest())
    }
}

impl Rows {
    /// Bytes of a row in all tensors that it is stored in.
    pub(super) fn source_row_bytes(&self) -> u64 {
        self.row_bytes().into_iter().flatten().sum()
    }
}
