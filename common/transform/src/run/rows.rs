//! Rows that are read, decoded, and written in another form.

use std::ops::Range;

use cake_checkpoint::{Dtype, RowsAt};

use super::bench::Bench;
use super::written::Written;
use crate::bytes::write_all_at;
use crate::error::Error;
use crate::piece::{Order, Rows};

/// About how many numbers are decoded at once: as f32 they stay in a core's cache.
const NUMBERS: u64 = 32 << 10;
/// The largest magnitude among some rows; 0 if there is none. What is no number does not count.
pub(super) fn largest(
    bench: &mut Bench<'_>,
    rows: &Rows,
    range: &Range<u64>,
) -> Result<f32, Error> {
    read(bench, rows, range)?;
    let mut largest = 0f32;
    decode(bench, rows, range, |_, numbers, _| {
        largest = numbers.iter().fold(largest, |most, number| most.max(number.abs()));
        Ok(())
    })?;
    Ok(largest)
}

/// Reads, encodes and writes some rows. `largest` is the largest magnitude of the matrix, where the form asks for it.
pub(super) fn write(
    bench: &mut Bench<'_>,
    rows: &Rows,
    range: &Range<u64>,
    largest: f32,
) -> Result<Written, Error> {
    read(bench, rows, range)?;
    let columns = rows.shape[1] as usize;
    let row_bytes = rows.form.row_bytes(rows.shape[1]);
    let places = rows.places(range);
    let mut parts = std::mem::take(&mut bench.written);
    parts.resize_with(places.len(), Vec::new);
    for (index, (part, (_, bytes))) in parts.iter_mut().zip(&places).enumerate() {
        part.clear();
        if index == 0 && range.start == 0 {
            part.extend(rows.form.head(largest));
        }
        part.resize(*bytes as usize, 0); // A unit's rows, of which a row is bounded.
    }
    let count = (range.end - range.start) as usize;
    decode(bench, rows, range, |first, numbers, name| {
        let some = numbers.len() / columns.max(1);
        let mut out: Vec<&mut [u8]> = parts
            .iter_mut()
            .zip(&row_bytes)
            .map(|(part, &bytes)| {
                let head = part.len() - count * bytes as usize;
                &mut part[head + first * bytes as usize..][..some * bytes as usize]
            })
            .collect();
        rows.form.write(numbers, columns, largest, &mut out).map_err(|cause| Error::Encode {
            tensor: name.to_owned(),
            cause: cause.after((range.start as usize + first) * columns),
        })
    })?;
    let mut written = bench.written();
    for (part, (place, _)) in parts.iter().zip(&places) {
        write_all_at(bench.outputs.file(place.output), part, place.offset)
            .map_err(|cause| bench.write_failed(place.output, cause))?;
        written.place();
        written.add(part);
    }
    bench.written = parts;
    Ok(written)
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
        let at = |row: u64| RowsAt { first: (range.start + row) as usize, columns };
        match rows.order {
            Order::Same => {
                rows.encoding.decode_rows(at(first), &stored(first, some), &mut bench.numbers);
            }
            order => {
                for (row, numbers) in (first..).zip(bench.numbers.chunks_exact_mut(columns.max(1)))
                {
                    let block = row / order.block() * order.block();
                    let from = block + order.source(row - block);
                    rows.encoding.decode_rows(at(from), &stored(from, 1), numbers);
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
