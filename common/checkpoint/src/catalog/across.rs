//! Reading codes that a file packs across rows: as everybody else knows them, packed along the columns, row by row.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::container::{Across, Places, StoredTensor, Strides};
use crate::file::read_exact_at;

/// Bits of a word.
const WORD: u64 = 32;

/// Most codes of a word.
const MOST: usize = 8;

/// Fills `buffer` with the bytes of a matrix of codes from `offset` on, which are all of it at most. What is read of the file
/// at once are stretches of its words: never more than those of eight columns and the rows asked for, or of one row.
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
    let Some(asked) = Asked::of(across, offset, buffer.len() as u64) else { return Ok(()) };
    let Strides { row, column } = across.words;
    let words_at = |word_row: u64, at: u64, read: &mut [[u8; 4]]| {
        let first = (word_row * row + at * column) * (WORD / 8);
        read_exact_at(file, read.as_flattened_mut(), tensor.offset + first)
    };
    let in_word = asked.in_word;
    let Range { start: top, end: bottom } = asked.word_rows();
    let Range { start: left, end: right } = asked.blocks;
    if row <= column {
        // Column by column, those of a block together: what lies close to each other is read at once.
        let stretch = ((bottom - top - 1) * row + 1) as usize;
        let mut read = vec![[0; 4]; stretch * in_word as usize];
        for block in left..right {
            let columns = block * in_word..((block + 1) * in_word).min(across.columns);
            let count = (columns.end - columns.start) as usize;
            for (column, read) in columns.zip(read.chunks_exact_mut(stretch)) {
                words_at(top, column, read)?;
            }
            for (index, word_row) in (top..bottom).enumerate() {
                let word = |at: usize| {
                    let place = at * stretch + index * row as usize;
                    if at < count { u32::from_le_bytes(read[place]) } else { 0 }
                };
                asked.put(std::array::from_fn(word), block, word_row, buffer);
            }
        }
        return Ok(());
    }
    let first = left * in_word;
    let count = (right * in_word).min(across.columns) - first;
    let mut read = vec![[0; 4]; ((count - 1) * column + 1) as usize];
    for word_row in top..bottom {
        words_at(word_row, first, &mut read)?;
        for block in left..right {
            let word = |at: usize| {
                let place = ((block - left) * in_word + at as u64) * column;
                let is_of_block = (at as u64) < in_word;
                let word = read.get(place as usize).filter(|_| is_of_block);
                word.map_or(0, |word| u32::from_le_bytes(*word))
            };
            asked.put(std::array::from_fn(word), block, word_row, buffer);
        }
    }
    Ok(())
}

/// What is asked for. All products are below the size of a tensor that is in the file, or of what is made of it.
struct Asked {
    across: Across,
    /// Codes of a word.
    in_word: u64,
    offset: u64,
    /// Bytes of a row as everybody else knows it.
    row_bytes: u64,
    rows: Range<u64>,
    /// Blocks of as many columns as a word has codes: the words that a block has in the file become as many of as many rows.
    blocks: Range<u64>,
}

impl Asked {
    /// So many bytes from `offset` on; `None` if they are none.
    fn of(across: Across, offset: u64, bytes: u64) -> Option<Asked> {
        let row_bytes = (across.columns * u64::from(across.bits)).div_ceil(8);
        let last = (offset + bytes).checked_sub(1).filter(|_| bytes > 0)?;
        let rows = offset.checked_div(row_bytes)?..last / row_bytes + 1;
        let blocks = match rows.end - rows.start {
            1 => offset % row_bytes / (WORD / 8)..last % row_bytes / (WORD / 8) + 1,
            _ => 0..row_bytes.div_ceil(WORD / 8),
        };
        let in_word = WORD / u64::from(across.bits);
        Some(Asked { across, in_word, offset, row_bytes, rows, blocks })
    }

    /// Which rows of words have those rows.
    fn word_rows(&self) -> Range<u64> {
        self.rows.start / self.in_word..(self.rows.end - 1) / self.in_word + 1
    }

    /// Puts the codes of a block of columns, of each of which there is one word, where they belong in `buffer`.
    fn put(&self, words: [u32; MOST], block: u64, word_row: u64, buffer: &mut [u8]) {
        let Across { bits, places, .. } = self.across;
        let bits = u32::from(bits);
        let mask = u32::MAX >> (WORD as u32 - bits);
        let first = word_row * self.in_word;
        let in_row = block * (WORD / 8);
        let length = (self.row_bytes - in_row).min(WORD / 8) as usize;
        for row in first.max(self.rows.start)..(first + self.in_word).min(self.rows.end) {
            let at = (row - first) as u32;
            let place = match places {
                Places::InOrder => at,
                Places::EvenFirst => at / 2 + at % 2 * (self.in_word as u32 / 2),
            };
            let code = |word: u32| word >> (place * bits) & mask;
            let codes = words.iter().take(self.in_word as usize).rev();
            let turned = codes.fold(0, |turned, word| turned << bits | code(*word));
            let turned = &turned.to_le_bytes()[..length];
            let start = row * self.row_bytes + in_row;
            let place = start.checked_sub(self.offset).map(|start| start as usize);
            if let Some(out) = place.and_then(|start| buffer.get_mut(start..start + length)) {
                out.copy_from_slice(turned);
                continue;
            }
            // The first and the last word may not be asked for as a whole.
            for (byte, place) in turned.iter().zip(start..) {
                let place = place.checked_sub(self.offset);
                if let Some(out) = place.and_then(|place| buffer.get_mut(place as usize)) {
                    *out = *byte;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::container::Lies;
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
            (4, 40, 19, strides(1, 6), Places::EvenFirst),
            (4, 33, 17, strides(18, 1), Places::InOrder),
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
