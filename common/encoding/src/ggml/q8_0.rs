//! `Q8_0`: a scale in half precision, then 32 signed codes of a byte. `weight = scale · code`.

use super::encode::{self, BLOCK, Extremes, inverse, round_half_up, stored};
use crate::encode_error::EncodeError;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 2 + BLOCK;

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
    let scale = extremes.magnitude() / 127.0;
    let inverse = inverse(scale).unwrap_or(0.0);
    for (out, value) in out[2..].iter_mut().zip(block) {
        let exact = value * inverse;
        let code = round_half_up(exact.abs());
        *out = if exact < 0.0 { code.wrapping_neg() } else { code };
    }
    stored(scale)
}
