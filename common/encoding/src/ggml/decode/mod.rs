//! What the bytes of one block mean, as ggml's own `dequantize_row_*` has it: f16 scales are widened, and all is computed
//! in f32, from left to right.
//!
//! `small.rs` has blocks of 32, `large.rs` those of 256, `table.rs` those whose codes are places in a table.

mod large;
mod small;
mod table;
#[cfg(test)]
mod tests;

use super::kind::GgmlType;

/// Fills `out` with the weights of whole blocks.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::Q4_0 => each(bytes, out, small::q4_0),
        GgmlType::Q4_1 => each(bytes, out, small::q4_1),
        GgmlType::Q5_0 => each(bytes, out, small::q5_0),
        GgmlType::Q5_1 => each(bytes, out, small::q5_1),
        GgmlType::Q8_0 => each(bytes, out, small::q8_0),
        GgmlType::Q2K => each(bytes, out, large::q2_k),
        GgmlType::Q3K => each(bytes, out, large::q3_k),
        GgmlType::Q4K => each(bytes, out, large::q4_k),
        GgmlType::Q5K => each(bytes, out, large::q5_k),
        GgmlType::Q6K => each(bytes, out, large::q6_k),
        GgmlType::Iq4Nl => each(bytes, out, table::iq4_nl),
        GgmlType::Iq4Xs => each(bytes, out, table::iq4_xs),
        GgmlType::Mxfp4 => each(bytes, out, table::mxfp4),
    }
}

/// Decodes blocks of `BYTES` bytes and `WEIGHTS` weights.
fn each<const BYTES: usize, const WEIGHTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    let (blocks, cut) = bytes.as_chunks::<BYTES>();
    let (weights, left) = out.as_chunks_mut::<WEIGHTS>();
    assert!(cut.is_empty() && left.is_empty(), "rows are whole blocks");
    assert_eq!(blocks.len(), weights.len(), "as many blocks as weights");
    blocks.iter().zip(weights).for_each(|(block, weights)| decode(block, weights));
}
