//! `Q8_0`: a scale in half precision, then 32 signed codes of a byte. `weight = scale · code`.

use super::encode::{BLOCK, Extremes, encode_blocks, inverse, round_half_up, stored};
use crate::encoding::affine::EncodeError;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 2 + BLOCK;

/// Encodes whole rows (or whole blocks).
///
/// # Errors
/// [`EncodeError`] for a number that is not finite, or too large for scales in half precision.
///
/// # Panics
/// If `values` are not whole blocks, or `out` does not have as many.
pub fn encode_rows(values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just seen.
        return unsafe { encode_avx2(values, out) };
    }
    encode_portable(values, out)
}

/// The same operations in wider registers: the same bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    encode_portable(values, out)
}

/// Always inlined, so that the compiler makes one for every kind of register.
#[inline(always)]
pub(super) fn encode_portable(values: &[f32], out: &mut [u8]) -> Result<(), EncodeError> {
    encode_blocks::<BLOCK_BYTES>(values, out, encode)
}

#[inline(always)]
fn encode(block: &[f32; BLOCK], extremes: Extremes, out: &mut [u8; BLOCK_BYTES]) -> u16 {
    let scale = extremes.magnitude() / 127.0;
    let inverse = inverse(scale).unwrap_or(0.0);
    for (out, value) in out[2..].iter_mut().zip(block) {
        let exact = value * inverse;
        let code = round_half_up(exact.abs());
        *out = if exact < 0.0 { code.wrapping_neg() } else { code };
    }
    stored(scale)
}
