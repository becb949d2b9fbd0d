//! Reading tensors whose rows lie in pairs: as everybody else knows them, the first half of each head before its second.

use std::fs::File;
use std::io;

use crate::container::StoredTensor;
use crate::file::read_exact_at;

/// Fills `buffer` with the bytes of a matrix or vector from `offset` on, which are all of it at most, row by row: whatever a row is
/// stored in moves as a whole.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(
    file: &File,
    tensor: &StoredTensor,
    heads: u64,
    offset: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    let row_bytes = tensor.bytes.checked_div(rows).unwrap_or(0);
    let half = rows.checked_div(2 * heads).unwrap_or(0);
    if row_bytes == 0 || half == 0 {
        return if buffer.is_empty() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) };
    }
    let (mut at, mut rest) = (offset, buffer);
    while !rest.is_empty() {
        let (row, inside) = (at / row_bytes, at % row_bytes);
        let length = (row_bytes - inside).min(rest.len() as u64);
        let (here, after) = rest.split_at_mut(length as usize);
        let (head, in_head) = (row / (2 * half), row % (2 * half));
        let stored = head * 2 * half + in_head % half * 2 + in_head / half;
        // A row of the same tensor, which is in the file.
        read_exact_at(file, here, tensor.offset + stored * row_bytes + inside)?;
        (at, rest) = (at + length, after);
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
    fn any_stretch_of_rows_in_pairs_has_its_bytes() {
        const BEFORE: usize = 5;
        for (heads, head_dim, row_bytes) in [(1, 2, 3), (3, 8, 7), (2, 4, 1)] {
            let rows = heads * head_dim;
            let lies: Vec<u8> =
                (0..(BEFORE + rows * row_bytes) as u32).map(|it| it as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&lies).unwrap();
            // The rotation's partners, 0 and its half and so on, lie beside each other.
            let half = head_dim / 2;
            let place = |row: usize| {
                let (head, inside) = (row / head_dim, row % head_dim);
                head * head_dim + if inside < half { 2 * inside } else { 2 * (inside - half) + 1 }
            };
            let row = |row| &lies[BEFORE + place(row) * row_bytes..][..row_bytes];
            let whole: Vec<u8> = (0..rows).flat_map(row).copied().collect();
            let tensor = StoredTensor {
                name: "it".to_owned(),
                file: 0,
                dtype: Dtype::U8,
                shape: vec![rows as u64, row_bytes as u64],
                offset: BEFORE as u64,
                bytes: (rows * row_bytes) as u64,
                lies: Lies::InPairs { heads: heads as u64 },
                encoding: None,
            };
            for start in 0..=whole.len() {
                for end in start..=whole.len() {
                    let mut found = vec![0; end - start];
                    read(&file, &tensor, heads as u64, start as u64, &mut found).unwrap();
                    assert_eq!(found, whole[start..end], "{heads} heads, {start}..{end}");
                }
            }
        }
    }
}
