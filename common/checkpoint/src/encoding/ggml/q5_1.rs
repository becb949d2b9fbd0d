//! `Q5_1`: a scale and a minimum in half precision, the fifth bits of 32 codes, then their four lower ones.
//! `weight = scale · code + minimum`.

use super::encode::{self, BLOCK, Extremes, floor, inverse, stored};
use super::q5_0::write;
use crate::encoding::encode_error::EncodeError;

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
    let low = block.iter().fold(f32::MAX, |low, &it| if it < low { it } else { low });
    let high = block.iter().fold(f32::MIN, |high, &it| if it > high { it } else { high });
    let scale = (high - low) / 31.0;
    let mut codes = [0; BLOCK];
    if let Some(inverse) = inverse(scale) {
        let code = |value: f32| floor((value - low) * inverse + 0.5).min(31);
        codes.iter_mut().zip(block).for_each(|(out, value)| *out = code(*value));
    }
    let minimum = stored(low);
    out[2..4].copy_from_slice(&minimum.to_le_bytes());
    write(&codes, &mut out[4..]);
    // A minimum beyond half precision is refused as a scale would be.
    if minimum & encode::INFINITY == encode::INFINITY { minimum } else { stored(scale) }
}
