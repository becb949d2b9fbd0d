//! `Q5_0`: a scale in half precision, the fifth bits of 32 codes, then their four lower ones. `weight = scale · (code - 16)`.

use super::encode::{self, BLOCK, Extremes, floor, inverse, pack, stored};
use crate::encode_error::EncodeError;

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 6 + BLOCK / 2;

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
    let scale = extremes.first_largest(block) / -16.0;
    let mut codes = [0; BLOCK];
    if let Some(inverse) = inverse(scale) {
        let code = |value: f32| floor(value * inverse + 16.5).min(31);
        codes.iter_mut().zip(block).for_each(|(out, value)| *out = code(*value));
    }
    write(&codes, &mut out[2..]);
    stored(scale)
}

/// Writes 32 codes of five bits: their fifth bits, then two to a byte the others of the first 16 and of the last.
#[inline(always)]
pub(super) fn write(codes: &[u8; BLOCK], out: &mut [u8]) {
    let bit = |(at, code): (usize, &u8)| u32::from(code >> 4) << at;
    let uppers = codes.iter().enumerate().map(bit).fold(0, |all, bit| all | bit);
    out[..4].copy_from_slice(&uppers.to_le_bytes());
    pack(codes, &mut out[4..]);
}
