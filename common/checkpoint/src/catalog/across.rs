//! Reading codes that a file packs across rows: as everybody else knows them, packed along the columns, row by row.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::container::{Across, Places, StoredTensor};
use crate::file::read_exact_at;

/// Bits of a word.
const WORD: u64 = 32;

/// Fills `buffer` with the bytes of a matrix of codes from `offset` on, which are all of it at most. What is read of the file
/// at once is a stretch of its words: never more than those of one column and the rows asked for, or of one row.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(
    file: &File,
    tensor: &StoredTensor,
    across: Across,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    buffer.fill(0);
    let target = Target { across, offset, row_bytes: row_bytes(across) };
    // All products are below the size of a tensor that is in the file.
    let end = offset + buffer.len() as u64;
    if buffer.is_empty() || target.row_bytes == 0 {
        return Ok(());
    }
    let rows = offset / target.row_bytes..(end - 1) / target.row_bytes + 1;
    let columns = target.columns(&rows, end);
    let Across { bits, words, .. } = across;
    let in_word = WORD / u64::from(bits);
    let word_rows = rows.start / in_word..(rows.end - 1) / in_word + 1;
    // Along what lies closer together.
    let by_column = words.row <= words.column;
    let (outer, outer_step, inner, inner_step) = match by_column {
        true => (columns, words.column, word_rows, words.row),
        false => (word_rows, words.row, columns, words.column),
    };
    let stretch = (inner.end - inner.start - 1) * inner_step + 1;
    let mut read = vec![[0; 4]; stretch as usize];
    for outer in outer {
        let first = (outer * outer_step + inner.start * inner_step) * (WORD / 8);
        read_exact_at(file, read.as_flattened_mut(), tensor.offset + first)?;
        for (word, inner) in read.iter().step_by(inner_step as usize).zip(inner.clone()) {
            let (word_row, column) = if by_column { (inner, outer) } else { (outer, inner) };
            let word = u32::from_le_bytes(*word);
            target.put(word, column, word_row * in_word, &rows, buffer);
        }
    }
    Ok(())
}

/// Bytes of a row as everybody else knows it.
fn row_bytes(Across { bits, columns, .. }: Across) -> u64 {
    (columns * u64::from(bits)).div_ceil(8)
}

/// What is asked for.
struct Target {
    across: Across,
    offset: u64,
    row_bytes: u64,
}

impl Target {
    /// Which columns are asked for in any of these rows, where all end at the byte `end`.
    fn columns(&self, rows: &Range<u64>, end: u64) -> Range<u64> {
        let Across { bits, columns, .. } = self.across;
        if rows.end - rows.start > 1 {
            return 0..columns;
        }
        let (start, in_byte) = (rows.start * self.row_bytes, 8 / u64::from(bits));
        let (first, last) = ((self.offset - start) * in_byte, (end - start) * in_byte);
        first..last.min(columns)
    }

    /// Puts the codes of a word, which are those of `column` in the rows from `first` on, where they belong in `buffer`.
    fn put(&self, word: u32, column: u64, first: u64, rows: &Range<u64>, buffer: &mut [u8]) {
        let Across { bits, places, .. } = self.across;
        let (bits, in_word) = (u64::from(bits), WORD / u64::from(bits));
        let (byte, shift) = (column * bits / 8, column * bits % 8);
        for row in first.max(rows.start)..(first + in_word).min(rows.end) {
            let at = row - first;
            let place = match places {
                Places::InOrder => at,
                Places::EvenFirst => at / 2 + at % 2 * (in_word / 2),
            };
            let code = (word >> (place * bits)) as u8 & (u8::MAX >> (8 - bits));
            // The first and the last row may not be asked for as a whole.
            let found = (row * self.row_bytes + byte).checked_sub(self.offset);
            if let Some(found) = found.and_then(|it| buffer.get_mut(it as usize)) {
                *found |= code << shift;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::container::{Lies, Strides};
    use crate::dtype::Dtype;

    /// What the matrix is, code by code.
    fn expected(file: &[u8], tensor: &StoredTensor, across: Across) -> Vec<u8> {
        let bits = usize::from(across.bits);
        let in_word = 32 / bits;
        let (rows, columns) = (tensor.shape[0] as usize, across.columns as usize);
        let mut all = vec![0; rows * (columns * bits).div_ceil(8)];
        for (row, out) in all.chunks_mut((columns * bits).div_ceil(8)).enumerate() {
            for column in 0..columns {
                let (down, right) = (across.words.row as usize, across.words.column as usize);
                let word = tensor.offset as usize + 4 * (row / in_word * down + column * right);
                let places: &[usize] = match across.places {
                    Places::InOrder => &[0, 1, 2, 3, 4, 5, 6, 7],
                    Places::EvenFirst => &[0, 4, 1, 5, 2, 6, 3, 7], // As AWQ has them.
                };
                let first = places[row % in_word] * bits;
                let bit = |bit: usize| file[word + bit / 8] >> (bit % 8) & 1;
                for at in 0..bits {
                    let place = column * bits + at;
                    out[place / 8] |= bit(first + at) << (place % 8);
                }
            }
        }
        all
    }

    #[test]
    fn any_stretch_of_codes_packed_across_rows_has_its_bytes() {
        let bytes: Vec<u8> = (0..4000u32).map(|byte| (byte * byte / 3 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let strides = |row, column| Strides { row, column };
        for (bits, rows, columns, words, places) in [
            (4, 16, 6, strides(1, 2), Places::InOrder),
            (4, 16, 6, strides(1, 2), Places::EvenFirst),
            (4, 24, 7, strides(1, 5), Places::EvenFirst),
            (4, 13, 5, strides(5, 1), Places::InOrder), // The last word is filled up.
            (4, 8, 1, strides(1, 1), Places::InOrder),
            (8, 12, 5, strides(1, 3), Places::InOrder),
            (8, 7, 3, strides(3, 1), Places::InOrder),
            (4, 0, 3, strides(1, 0), Places::InOrder),
        ] {
            let across = Across { bits, columns, words, places };
            let shape = vec![rows, (columns * u64::from(bits)).div_ceil(8)];
            let tensor = StoredTensor {
                name: "it".to_owned(),
                file: 0,
                dtype: Dtype::U8,
                bytes: shape.iter().product(),
                shape,
                offset: 13,
                lies: Lies::Across(across),
                encoding: None,
            };
            let whole = expected(&bytes, &tensor, across);
            assert_eq!(whole.len() as u64, tensor.bytes);
            for start in 0..=whole.len() {
                for end in [start, start + 1, start + 5, start + 17, whole.len()] {
                    let end = end.clamp(start, whole.len());
                    let mut found = vec![0xff; end - start];
                    read(&file, &tensor, across, start as u64, &mut found).unwrap();
                    assert!(found == whole[start..end], "{tensor:?} {start}..{end}");
                }
            }
        }
    }
}
