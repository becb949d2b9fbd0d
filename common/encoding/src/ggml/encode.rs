//! What the quantizers have in common: blocks of 32 neighbours, each with its scale.

use crate::encode_error::EncodeError;
use crate::float::element::{FloatType, nearest_f16};

/// Neighbours that share a scale; a row is whole blocks.
pub(super) const BLOCK: usize = 32;
/// 2²³: added to a number from 0 to 2²², it leaves the nearest whole number in the lowest bits.
const ROUNDER: f32 = 8_388_608.0;
/// The half precision bits of infinity.
pub(super) const INFINITY: u16 = 0x7c00;

/// Encodes block by block, in the widest registers that the processor has: the same operations, and the same bytes, in all.
///
/// # Errors
/// [`EncodeError`] for a number that is not finite, or a scale that half precision does not have.
///
/// # Panics
/// If `values` are not whole blocks, or `out` does not have as many.
pub(super) fn encode_rows<const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], Extremes, &mut [u8; BYTES]) -> u16,
) -> Result<(), EncodeError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn in_avx2<const BYTES: usize>(
            values: &[f32],
            out: &mut [u8],
            encode: impl Fn(&[f32; BLOCK], Extremes, &mut [u8; BYTES]) -> u16,
        ) -> Result<(), EncodeError> {
            encode_blocks(values, out, encode)
        }
        // SAFETY: the processor has AVX2, as was just seen.
        return unsafe { in_avx2(values, out, encode) };
    }
    encode_blocks(values, out, encode)
}

/// Always inlined, so that the compiler makes one for every kind of register.
#[inline(always)]
pub(super) fn encode_blocks<const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], Extremes, &mut [u8; BYTES]) -> u16,
) -> Result<(), EncodeError> {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let (out, more) = out.as_chunks_mut::<BYTES>();
    assert!(rest.is_empty() && more.is_empty(), "rows are whole blocks");
    assert_eq!(blocks.len(), out.len(), "room for as many blocks as given");
    for (index, (block, out)) in blocks.iter().zip(out).enumerate() {
        let extremes = Extremes::of(block);
        let largest = extremes.magnitude();
        let scale = if largest.is_finite() { encode(block, extremes, out) } else { INFINITY };
        if scale & INFINITY == INFINITY {
            return Err(refused(block, index * BLOCK, largest));
        }
        out[..2].copy_from_slice(&scale.to_le_bytes());
    }
    Ok(())
}

/// The bits of the largest number of a block with either sign; that of the other one is less than any number's.
#[derive(Clone, Copy)]
pub(super) struct Extremes {
    positive: i32,
    negative: i32,
}

impl Extremes {
    #[inline(always)]
    fn of(block: &[f32; BLOCK]) -> Extremes {
        // As whole numbers, magnitudes of one sign are in order, NaN after infinity, and those of the other come before.
        let (mut positive, mut negative) = (i32::MIN, i32::MIN);
        for value in block {
            let bits = value.to_bits() as i32;
            positive = positive.max(bits);
            negative = negative.max(bits ^ i32::MIN);
        }
        Extremes { positive, negative }
    }

    /// The largest magnitude; not finite if any number is not.
    #[inline(always)]
    pub(super) fn magnitude(self) -> f32 {
        f32::from_bits(self.positive.max(self.negative) as u32)
    }

    /// The first number with the largest magnitude.
    #[inline(always)]
    pub(super) fn first_largest(self, block: &[f32; BLOCK]) -> f32 {
        let largest = self.magnitude();
        match self.positive.cmp(&self.negative) {
            std::cmp::Ordering::Greater => largest,
            std::cmp::Ordering::Less => -largest,
            std::cmp::Ordering::Equal => {
                block.iter().copied().find(|value| value.abs() == largest).unwrap_or(largest)
            }
        }
    }
}

/// The bits of a scale, as it is stored.
#[inline(always)]
pub(super) fn stored(scale: f32) -> u16 {
    nearest_f16(scale)
}

/// What numbers are multiplied with instead of divided by the scale: nothing where the scale is nothing, or so small that
/// its inverse is no number (it is stored as zero then).
#[inline(always)]
pub(super) fn inverse(scale: f32) -> Option<f32> {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    inverse.is_finite().then_some(inverse)
}

/// The nearest whole number, halves away from zero, of one from 0 to 255.
#[inline(always)]
pub(super) fn round_half_up(value: f32) -> u8 {
    let sum = value + ROUNDER; // Halves to even.
    let is_cut = value - (sum - ROUNDER) == 0.5;
    (sum.to_bits() as u8).wrapping_add(u8::from(is_cut))
}

/// The whole number below, or at, one from 0 to 255.
#[inline(always)]
pub(super) fn floor(value: f32) -> u8 {
    let sum = value + ROUNDER;
    let is_above = sum - ROUNDER > value;
    (sum.to_bits() as u8).wrapping_sub(u8::from(is_above))
}

/// Codes from 0 to `LARGEST` above the least number of a block, with the scale and that minimum as they are stored. The scale is
/// infinite where half precision does not have the minimum.
#[inline(always)]
pub(super) fn above_minimum<const LARGEST: u8>(block: &[f32; BLOCK]) -> ([u8; BLOCK], u16, u16) {
    let low = block.iter().fold(f32::MAX, |low, &it| if it < low { it } else { low });
    let high = block.iter().fold(f32::MIN, |high, &it| if it > high { it } else { high });
    let scale = (high - low) / f32::from(LARGEST);
    let mut codes = [0; BLOCK];
    if let Some(inverse) = inverse(scale) {
        let code = |value: f32| floor((value - low) * inverse + 0.5).min(LARGEST);
        codes.iter_mut().zip(block).for_each(|(out, value)| *out = code(*value));
    }
    let minimum = stored(low);
    (codes, if minimum & INFINITY == INFINITY { INFINITY } else { stored(scale) }, minimum)
}

/// Codes of 4 bits: those of a block's first half in the lower ones of a byte, of its second half in the upper ones.
#[inline(always)]
pub(super) fn pack(codes: &[u8; BLOCK], out: &mut [u8]) {
    let (low, high) = codes.split_at(BLOCK / 2);
    for (out, (&low, &high)) in out.iter_mut().zip(low.iter().zip(high)) {
        *out = low & 15 | high << 4;
    }
}

#[cold]
fn refused(block: &[f32; BLOCK], start: usize, largest: f32) -> EncodeError {
    match block.iter().position(|value| !value.is_finite()) {
        Some(inside) => EncodeError::NotFinite { index: start + inside, value: block[inside] },
        None => EncodeError::TooLarge { index: start, value: largest, params: FloatType::F16 },
    }
}
