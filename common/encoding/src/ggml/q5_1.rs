//! `Q5_1`: a scale and a minimum in half precision, the fifth bits of 32 codes, then their four lower ones.
//! `weight = scale · code + minimum`.

use super::encode::{self, BLOCK, Extremes};
use super::q5_0::write;
use crate::encode_error::EncodeError;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 8 + BLOCK / 2;

/// Encodes whole rows (or whole blocks).
///
/// # Errors
/// [`EncodeError`] for a number that is not finite, or too large for scales and minima in half precision.
///
/// # Panics
/// If `values` are not whole blocks, or `out` does not have as many.
pub(super) fn encode_rows(values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    encode::encode_rows::<BLOCK_BYTES>(values, out, encode)
}

#[inline(always)]
pub(super) fn encode(block: &[f32; BLOCK], _: Extremes, out: &mut [u8; BLOCK_BYTES]) -> u16 {
    let (codes, scale, minimum) = encode::above_minimum::<31>(block);
    out[2..4].copy_from_slice(&minimum.to_le_bytes());
    write(&codes, &mut out[4..]);
    scale
}
