//! `Q4_0`: a scale in half precision, then 32 codes of four bits. `weight = scale · (code - 8)`.

use super::encode::{self, BLOCK, Extremes, floor, inverse, stored};
use crate::encode_error::EncodeError;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 2 + BLOCK / 2;

/// Encodes whole rows (or whole blocks).
///
/// # Errors
/// [`EncodeError`] for a number that is not finite, or too large for scales in half precision.
///
/// # Panics
/// If `values` are not whole blocks, or `out` does not have as many.
pub(super) fn encode_rows(values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    encode::encode_rows::<BLOCK_BYTES>(values, out, encode)
}

#[inline(always)]
pub(super) fn encode(block: &[f32; BLOCK], extremes: Extremes, out: &mut [u8; BLOCK_BYTES]) -> u16 {
    // The largest magnitude has the code 0, so that the scale has the other sign.
    let scale = extremes.first_largest(block) / -8.0;
    let (_, codes) = out.split_at_mut(2);
    match inverse(scale) {
        Some(inverse) => {
            let code = |value: f32| floor(value * inverse + 8.5).min(15);
            let (low, high) = block.split_at(BLOCK / 2);
            for (out, (&low, &high)) in codes.iter_mut().zip(low.iter().zip(high)) {
                *out = code(low) | code(high) << 4;
            }
        }
        None => codes.fill(0),
    }
    stored(scale)
}
