//! Codes of a byte each, with a scale and a bias for a group: what kernels that multiply bytes take.

use super::decode::{Stored, zero_of};
use super::format::Integer;
use crate::codec::Unpacked;

/// Unpacks whole rows of so many `columns`, whose groups are neighbours; where those of `out` are smaller than stored ones,
/// several have the same scale.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn unpack_rows(format: Integer, stored: &Stored<'_>, columns: usize, out: Unpacked<'_>) {
    let Unpacked { codes, scales, biases } = out;
    let bits = format.bits();
    assert_eq!(stored.codes.len() * 8, codes.len() * bits, "as many codes as weights");
    assert_eq!(scales.len(), biases.len(), "a bias a scale");
    if codes.is_empty() {
        return;
    }
    match bits {
        8 => codes.copy_from_slice(stored.codes),
        _ => {
            for (pair, byte) in codes.as_chunks_mut().0.iter_mut().zip(stored.codes) {
                *pair = [byte & 15, byte >> 4];
            }
        }
    }
    let rows = codes.len() / columns;
    let count = format.groups(columns as u64).expect("rows are whole words") as usize;
    let size = columns * rows / scales.len(); // Weights of a group of `out`.
    let per_group = format.group().unwrap_or(columns) / size;
    let mut widened = vec![0.0; rows * count];
    stored.params.widen(stored.scales, &mut widened);
    let zero_bytes = (count * bits).div_ceil(8);
    let rows = scales.chunks_exact_mut(columns / size).zip(biases.chunks_exact_mut(columns / size));
    for (row, ((scales, biases), widened)) in rows.zip(widened.chunks_exact(count)).enumerate() {
        let zeros = stored.zeros.map(|zeros| &zeros[row * zero_bytes..][..zero_bytes]);
        let same = scales.chunks_mut(per_group).zip(biases.chunks_mut(per_group));
        for (group, ((scales, biases), scale)) in same.zip(widened).enumerate() {
            scales.fill(*scale);
            biases.fill(-scale * zero_of(format, zeros, group));
        }
    }
}
