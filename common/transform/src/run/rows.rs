//! Rows that are read, decoded, and written in another form.

use std::ops::Range;

use cake_checkpoint::Dtype;

use super::bench::Bench;
use crate::bytes::write_all_at;
use crate::error::Error;
use crate::piece::{Order, Rows};

/// About how many numbers are decoded at once: as f32 they stay in a core's cache.
const NUMBERS: u64 = 32 << 10;
/// How much of a matrix is looked at at once, where all of it decides.
const LOOK_BYTES: u64 = 4 << 20;

/// Writes some rows and gives the digest of what was written.
pub(super) fn rows(
    bench: &mut Bench<'_>,
    rows: &Rows,
    range: Range<u64>,
) -> Result<blake3::Hash, Error> {
    if !rows.form.needs_largest() {
        let mut hasher = blake3::Hasher::new();
        write(bench, rows, range, 0.0, &mut hasher)?;
        return Ok(hasher.finalize());
    }
    let row_bytes = rows.source_row_bytes().max(1);
    let step = (LOOK_BYTES / row_bytes).max(1).next_multiple_of(rows.order.block());
    let stretches = || {
        let starts = (range.start..range.end).step_by(step as usize);
        starts.map(|start| start..(start + step).min(range.end))
    };
    let mut largest = 0f32;
    for stretch in stretches() {
        bench.check()?;
        read(bench, rows, &stretch)?;
        decode(bench, rows, &stretch, |_, numbers, _| {
            largest = numbers.iter().fold(largest, |most, number| most.max(number.abs()));
            Ok(())
        })?;
    }
    let head = rows.form.head(largest);
    let place = rows.places[0];
    write_all_at(bench.outputs.file(place.output), &head, place.offset)
        .map_err(|cause| bench.write_failed(place.output, cause))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    for stretch in stretches() {
        bench.check()?;
        write(bench, rows, stretch, largest, &mut hasher)?;
    }
    Ok(hasher.finalize())
}

/// Reads, encodes and writes rows; `hasher` gets each part of what was written, one after the other.
fn write(
    bench: &mut Bench<'_>,
    rows: &Rows,
    range: Range<u64>,
    largest: f32,
    hasher: &mut blake3::Hasher,
) -> Result<(), Error> {
    read(bench, rows, &range)?;
    let columns = rows.shape[1] as usize;
    let row_bytes = rows.form.row_bytes(rows.shape[1]);
    let count = range.end - range.start;
    let mut written = std::mem::take(&mut bench.written);
    written.resize_with(row_bytes.len(), Vec::new);
    for (part, bytes) in written.iter_mut().zip(&row_bytes) {
        part.clear();
        part.resize((bytes * count) as usize, 0); // A unit's rows, of which a row is bounded.
    }
    decode(bench, rows, &range, |first, numbers, name| {
        let count = numbers.len() / columns.max(1);
        let mut out: Vec<&mut [u8]> = written
            .iter_mut()
            .zip(&row_bytes)
            .map(|(part, &bytes)| &mut part[first * bytes as usize..][..count * bytes as usize])
            .collect();
        rows.form.write(numbers, columns, largest, &mut out).map_err(|cause| Error::Encode {
            tensor: name.to_owned(),
            cause: cause.after((range.start as usize + first) * columns),
        })
    })?;
    let mut head = rows.form.head_bytes();
    for ((part, bytes), place) in written.iter().zip(&row_bytes).zip(&rows.places) {
        let offset = place.offset + head + range.start * bytes;
        write_all_at(bench.outputs.file(place.output), part, offset)
            .map_err(|cause| bench.write_failed(place.output, cause))?;
        hasher.update(part);
        head = 0;
    }
    bench.written = written;
    Ok(())
}

/// Reads what the rows of a unit are stored in.
fn read(bench: &mut Bench<'_>, rows: &Rows, range: &Range<u64>) -> Result<(), Error> {
    bench.read.resize_with(rows.parts.len(), Vec::new);
    let parts = rows.parts.iter().zip(rows.row_bytes());
    for (buffer, ((_, part), row_bytes)) in bench.read.iter_mut().zip(parts) {
        let (skipped, bytes) = match row_bytes {
            Some(bytes) => (bytes * range.start, bytes * (range.end - range.start)),
            None => (0, part.bytes),
        };
        buffer.resize(bytes as usize, 0);
        bench.job.source.files[part.file].read_at(part.offset + skipped, buffer)?;
    }
    Ok(())
}

/// Decodes what was read, a few rows at a time, in the order in which they are written. `each` gets the number of the first
/// of them, counted from the unit's first, and the tensor's name.
fn decode(
    bench: &mut Bench<'_>,
    rows: &Rows,
    range: &Range<u64>,
    mut each: impl FnMut(usize, &[f32], &str) -> Result<(), Error>,
) -> Result<(), Error> {
    let columns = rows.shape[1] as usize;
    let count = range.end - range.start;
    let step = (NUMBERS / rows.shape[1].max(1)).clamp(1, count.max(1));
    let row_bytes = rows.row_bytes();
    for first in (0..count).step_by(step as usize) {
        let some = step.min(count - first);
        bench.numbers.resize(some as usize * columns, 0.0);
        let stored = |row: u64, count: u64| -> Vec<(Dtype, &[u8])> {
            let parts = rows.parts.iter().zip(&bench.read).zip(&row_bytes);
            parts
                .map(|(((dtype, _), bytes), row_bytes)| match row_bytes {
                    None => (*dtype, &bytes[..]),
                    Some(of_row) => {
                        let (start, length) = ((row * of_row) as usize, (count * of_row) as usize);
                        (*dtype, &bytes[start..start + length])
                    }
                })
                .collect()
        };
        match rows.order {
            Order::Same => rows.encoding.decode_rows(&stored(first, some), &mut bench.numbers),
            order => {
                for (row, numbers) in (first..).zip(bench.numbers.chunks_exact_mut(columns.max(1)))
                {
                    let block = row / order.block() * order.block();
                    let from = block + order.source(row - block);
                    rows.encoding.decode_rows(&stored(from, 1), numbers);
                }
            }
        }
        if rows.add != 0.0 {
            bench.numbers.iter_mut().for_each(|number| *number += rows.add);
        }
        each(first as usize, &bench.numbers, &rows.name)?;
    }
    Ok(())
}
