//! Reading tensors whose rows lie apart, each of them together: as everybody else knows them, one row after the other.

use std::fs::File;
use std::io;

use crate::container::StoredTensor;
use crate::file::read_exact_at;

/// Most bytes of the file that are read at once, what lies between rows among them.
const STRETCH_BYTES: u64 = 256 << 10;

/// Fills `buffer` with the tensor's bytes from `offset` on, which are all of it at most. From the first byte of one row to that
/// of the next are `stride` bytes.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(
    file: &File,
    tensor: &StoredTensor,
    stride: u64,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    // All products are below the place of a byte of the tensor, which is in the file.
    let row_bytes = tensor.bytes / tensor.shape.first().copied().unwrap_or(1).max(1);
    let at_once = (STRETCH_BYTES / stride.max(1)).max(1);
    let (mut offset, mut rest, mut stretch) = (offset, buffer, Vec::new());
    while !rest.is_empty() {
        let (row, inside) = (offset / row_bytes, offset % row_bytes);
        let length = (at_once * row_bytes - inside).min(rest.len() as u64);
        let (out, later) = rest.split_at_mut(length as usize);
        let first = tensor.offset + row * stride + inside;
        if inside + length <= row_bytes {
            read_exact_at(file, out, first)?;
        } else {
            let end = offset + length - 1; // The last byte.
            let last = tensor.offset + end / row_bytes * stride + end % row_bytes;
            stretch.resize((last + 1 - first) as usize, 0);
            read_exact_at(file, &mut stretch, first)?;
            // Of the first row less may be asked for.
            let (head, whole) = out.split_at_mut((row_bytes - inside) as usize);
            head.copy_from_slice(&stretch[..head.len()]);
            let rows = stretch[(stride - inside) as usize..].chunks(stride as usize);
            for (out, row) in whole.chunks_mut(row_bytes as usize).zip(rows) {
                out.copy_from_slice(&row[..out.len()]);
            }
        }
        offset += length;
        rest = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::container::Lies;
    use crate::dtype::Dtype;

    #[test]
    fn any_stretch_of_rows_that_lie_apart_has_their_bytes() {
        let bytes: Vec<u8> = (0..3 << 20).map(|byte: u32| (byte * 7 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let none = vec![0, 4];
        for (shape, stride) in [
            (vec![5, 7], 14),
            (vec![5, 7], 7),
            (vec![1, 7], 21),
            (vec![300_000, 3], 6), // More than are read at once.
            (vec![3, 300_000], 600_000),
            (vec![9], 4),
            (none, 8),
        ] {
            let count: u64 = shape.iter().product();
            let rows = shape[0];
            let (dtype, lies) = (Dtype::U8, Lies::RowsApart(stride));
            let tensor = StoredTensor {
                name: "it".to_owned(),
                file: 0,
                dtype,
                shape,
                offset: 13,
                bytes: count,
                lies,
                encoding: None,
            };
            let row = count / rows.max(1);
            let place = |index: u64| 13 + (index / row * stride + index % row) as usize;
            let whole: Vec<u8> = (0..count).map(|index| bytes[place(index)]).collect();
            let starts: Vec<usize> = match whole.len() {
                0..100 => (0..=whole.len()).collect(),
                all => vec![0, 1, 2, 299_999, 300_001, all / 2, all - 1],
            };
            for start in starts {
                for length in [0, 1, 5, 24, 131_071, 262_145, whole.len()] {
                    let end = (start + length).min(whole.len());
                    let mut found = vec![0; end - start];
                    read(&file, &tensor, stride, start as u64, &mut found).unwrap();
                    assert!(found == whole[start..end], "{tensor:?} {start}..{end}");
                }
            }
        }
    }
}
