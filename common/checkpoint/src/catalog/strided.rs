//! Reading tensors whose numbers lie apart: as everybody else knows them, row by row.

use std::fs::File;
use std::io;
use std::ops::Range;

use crate::container::{StoredTensor, Strides};
use crate::file::read_exact_at;

/// Fills `buffer` with the bytes of a matrix or vector from `offset` on, which are all of it at most. What is read of the file
/// at once is a stretch of one of its columns as the file has them: never more than the rows asked for take there.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(
    file: &File,
    tensor: &StoredTensor,
    strides: Strides,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    match tensor.dtype.bits() {
        16 => numbers::<2>(file, tensor, strides, offset, buffer),
        32 => numbers::<4>(file, tensor, strides, offset, buffer),
        _ => Err(io::ErrorKind::Unsupported.into()), // Nobody takes such a tensor out of another one.
    }
}

/// The same of numbers of so many bytes.
fn numbers<const WIDTH: usize>(
    file: &File,
    tensor: &StoredTensor,
    strides: Strides,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let width = WIDTH as u64;
    let (first, end) = (offset / width, (offset + buffer.len() as u64).div_ceil(width));
    let gather = Gather { file, tensor, strides };
    if offset.is_multiple_of(width) && buffer.len().is_multiple_of(WIDTH) {
        return gather.fill(first..end, buffer.as_chunks_mut::<WIDTH>().0);
    }
    let mut whole = vec![[0; WIDTH]; (end - first) as usize]; // Two more than the buffer has, at most.
    gather.fill(first..end, &mut whole)?;
    let skipped = (offset - first * width) as usize;
    buffer.copy_from_slice(&whole.as_flattened()[skipped..][..buffer.len()]);
    Ok(())
}

struct Gather<'a> {
    file: &'a File,
    tensor: &'a StoredTensor,
    strides: Strides,
}

impl Gather<'_> {
    /// Fills `out` with the numbers of that range, counted row by row.
    fn fill<const WIDTH: usize>(
        &self,
        range: Range<u64>,
        out: &mut [[u8; WIDTH]],
    ) -> io::Result<()> {
        // All products are below the size of a tensor that is in the file.
        let columns = self.tensor.shape.get(1).copied().unwrap_or(1);
        if range.is_empty() || columns == 0 {
            return Ok(());
        }
        let rows = range.start / columns..(range.end - 1) / columns + 1;
        let of_one = if rows.end - rows.start == 1 {
            range.start % columns..(range.end - 1) % columns + 1
        } else {
            0..columns
        };
        let Strides { row, column } = self.strides;
        let stretch = (rows.end - rows.start - 1) * row + 1;
        let mut read = vec![[0; WIDTH]; stretch as usize];
        for at in of_one {
            let first = (rows.start * row + at * column) * WIDTH as u64;
            read_exact_at(self.file, read.as_flattened_mut(), self.tensor.offset + first)?;
            for (number, index) in read.iter().step_by(row as usize).zip(rows.clone()) {
                // The first and the last row may not be asked for as a whole.
                let place = (index * columns + at).checked_sub(range.start);
                if let Some(place) = place.and_then(|place| out.get_mut(place as usize)) {
                    *place = *number;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::container::Lies;
    use crate::dtype::Dtype;

    /// What `tensor` is, number by number.
    fn expected(file: &[u8], tensor: &StoredTensor, width: usize) -> Vec<u8> {
        let Lies::Apart(Strides { row, column }) = tensor.lies else { panic!("{tensor:?}") };
        let columns = tensor.shape.get(1).copied().unwrap_or(1);
        let place =
            |index: u64| (index / columns * row + index % columns * column) as usize * width;
        let number = |index| &file[tensor.offset as usize + place(index)..][..width];
        (0..tensor.bytes / width as u64).flat_map(number).copied().collect()
    }

    #[test]
    fn any_stretch_of_a_turned_matrix_has_its_bytes() {
        let bytes: Vec<u8> = (0..2000u32).map(|byte| (byte * 7 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        for (dtype, width) in [(Dtype::BF16, 2), (Dtype::F32, 4)] {
            for (shape, strides) in [
                (vec![5, 7], Strides { row: 1, column: 10 }),
                (vec![5, 7], Strides { row: 2, column: 10 }),
                (vec![1, 7], Strides { row: 1, column: 1 }),
                (vec![9], Strides { row: 2, column: 18 }),
                (vec![0, 3], Strides { row: 1, column: 0 }),
            ] {
                let count: u64 = shape.iter().product();
                let tensor = StoredTensor {
                    name: "it".to_owned(),
                    file: 0,
                    dtype,
                    shape,
                    offset: 13,
                    bytes: count * width as u64,
                    lies: Lies::Apart(strides),
                    encoding: None,
                };
                let whole = expected(&bytes, &tensor, width);
                for start in 0..=whole.len() {
                    for end in [start, start + 1, start + 5, start + 24, whole.len()] {
                        let end = end.clamp(start, whole.len());
                        let mut found = vec![0; end - start];
                        read(&file, &tensor, strides, start as u64, &mut found).unwrap();
                        assert!(found == whole[start..end], "{tensor:?} {start}..{end}");
                    }
                }
            }
        }
    }
}
