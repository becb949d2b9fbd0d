//! Rows of a tensor, decoded a few at a time.

use std::ops::Range;

use cake_checkpoint::{Dtype, Encoding, RowsAt};

use crate::error::Error;
use crate::numbers::Numbers;
use crate::piece::{Stretch, row_bytes};
use crate::source::Source;

/// About how many numbers are decoded at once.
const NUMBERS: u64 = 256 << 10;
/// Most bytes that a row may have.
const MOST_BYTES: u64 = 64 << 20;

/// Reads one tensor from its first row to its last.
pub(crate) struct Reader<'a> {
    source: &'a Source,
    encoding: Encoding,
    parts: Vec<(Dtype, Stretch)>,
    shape: [u64; 2],
    /// Of each part; `None` for one that all rows share.
    row_bytes: Vec<Option<u64>>,
    read: Vec<Vec<u8>>,
    numbers: Vec<f32>,
}

impl<'a> Reader<'a> {
    /// `flat`: whether a vector of plain numbers, which may be longer than any row, is read as rows of one number.
    ///
    /// # Errors
    /// [`Error::LongRow`] if a row is more than is held at once.
    ///
    /// # Panics
    /// If it is not known how the tensor is stored.
    pub(crate) fn new(
        source: &'a Source,
        numbers: &Numbers,
        flat: bool,
    ) -> Result<Reader<'a>, Error> {
        let mut shape = numbers.matrix_shape();
        let encoding = numbers.encoding.expect("asked for before numbers are read");
        let parts = numbers.stretches(source);
        if let (true, Encoding::Float(_), [1, columns]) = (flat, encoding, shape) {
            shape = [columns, 1];
        }
        let row_bytes = row_bytes(encoding, &parts, shape);
        let bytes = row_bytes.iter().flatten().sum();
        if bytes > MOST_BYTES {
            return Err(Error::LongRow { tensor: numbers.name.clone(), bytes, most: MOST_BYTES });
        }
        let read = parts.iter().map(|_| Vec::new()).collect();
        Ok(Reader { source, encoding, parts, shape, row_bytes, read, numbers: Vec::new() })
    }

    /// The rows, in stretches that are read at once.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let [rows, columns] = self.shape;
        let rows = if columns == 0 { 0 } else { rows };
        let step = (NUMBERS / columns.max(1)).max(1);
        (0..rows).step_by(step as usize).map(move |start| start..(start + step).min(rows))
    }

    /// Bytes that some rows are stored in.
    pub(crate) fn bytes(&self, rows: &Range<u64>) -> u64 {
        self.row_bytes.iter().flatten().sum::<u64>() * (rows.end - rows.start)
    }

    /// The numbers of some rows.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Shrunk`] if they cannot be read.
    pub(crate) fn decode(&mut self, rows: Range<u64>) -> Result<&[f32], Error> {
        let count = rows.end - rows.start;
        let parts = self.parts.iter().zip(&self.row_bytes);
        for (buffer, ((_, part), row_bytes)) in self.read.iter_mut().zip(parts) {
            let (skipped, bytes) = match row_bytes {
                Some(bytes) => (bytes * rows.start, bytes * count),
                None => (0, part.bytes),
            };
            buffer.resize(bytes as usize, 0);
            self.source.files[part.file].read_at(part.offset + skipped, buffer)?;
        }
        let parts: Vec<(Dtype, &[u8])> =
            self.parts.iter().zip(&self.read).map(|(part, read)| (part.0, &read[..])).collect();
        self.numbers.resize((count * self.shape[1]) as usize, 0.0);
        let at = RowsAt { first: rows.start as usize, columns: self.shape[1] as usize };
        self.encoding.decode_rows(at, &parts, &mut self.numbers);
        Ok(&self.numbers)
    }
}
