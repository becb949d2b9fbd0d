//! Encoders of blocks of 256 weights: Q4_K, Q5_K and Q6_K.
//!
//! Each group of 16 or 32 weights gets the scale (and minimum) that fits it best, found by trying codes for a number of steps and
//! solving for the scale that belongs to these codes; then the block gets what its groups' scales are multiples of, whole ones,
//! and the codes that fit those. How much an error counts grows with a weight's magnitude: large ones matter more to products.
//! Formats are llama.cpp's; its quantizers search too, in another way, so that bytes differ and errors are no larger here.
//!
//! Only operations of IEEE 754, in an order that does not depend on the machine: equal weights give equal bytes everywhere.

mod fit;
mod signed;
#[cfg(test)]
mod tests;
mod with_minima;

pub(super) use signed::q6_k;
pub(super) use with_minima::{q4_k, q5_k};

use crate::encode_error::EncodeError;
use crate::float::element::{FloatType, f16, nearest_f16};

/// Weights of a block.
const BLOCK: usize = 256;
/// Lanes in which numbers are summed; each group is a multiple.
const LANES: usize = 8;
/// 1.5 · 2²³: added to a number of a magnitude up to 2²², it leaves the nearest whole number, ties to even, in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// The half precision bits of infinity.
const INFINITY: u16 = 0x7c00;

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
    encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> Scales,
) -> Result<(), EncodeError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn in_avx2<const BYTES: usize>(
            values: &[f32],
            out: &mut [u8],
            encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> Scales,
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
fn encode_blocks<const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> Scales,
) -> Result<(), EncodeError> {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let (out, more) = out.as_chunks_mut::<BYTES>();
    assert!(rest.is_empty() && more.is_empty(), "rows are whole blocks");
    assert_eq!(blocks.len(), out.len(), "room for as many blocks as given");
    for (index, (block, out)) in blocks.iter().zip(out).enumerate() {
        if let Some(inside) = block.iter().position(|value| !value.is_finite()) {
            let (index, value) = (index * BLOCK + inside, block[inside]);
            return Err(EncodeError::NotFinite { index, value });
        }
        // Sums of squares of what is beyond are no numbers: such scales are in no range of half precision either.
        let largest = block.iter().fold(0f32, |most, value| most.max(value.abs()));
        let too_large =
            EncodeError::TooLarge { index: index * BLOCK, value: largest, params: FloatType::F16 };
        if largest > LARGEST || encode(block, out).into_iter().any(|it| it & INFINITY == INFINITY) {
            return Err(too_large);
        }
    }
    Ok(())
}

/// Magnitudes beyond it have scales beyond half precision in any of the formats: 65504 · 63 · 63 is less.
const LARGEST: f32 = 3e8;

/// The bits of the scales that a block has in half precision.
type Scales = [u16; 2];

/// The scale that a block stores: the nearest in half precision, and its bits.
#[inline(always)]
fn stored(scale: f32) -> (f32, u16) {
    let bits = nearest_f16(scale);
    (f16(bits), bits)
}

/// The nearest whole number from `least` to `most`, as a number; `value` has a magnitude of 2²² at most, or is cut to the range anyway.
#[inline(always)]
fn nearest(value: f32, least: f32, most: f32) -> f32 {
    let value = if value < least { least } else { value };
    let value = if value > most { most } else { value };
    (value + ROUNDER) - ROUNDER
}

/// 1 over a scale; nothing where there is none.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if scale != 0.0 && inverse.is_finite() { inverse } else { 0.0 }
}

/// How much the squared error of each weight counts.
#[inline(always)]
fn importance<const GROUP: usize>(group: &[f32; GROUP]) -> [f32; GROUP] {
    let square = sum(group, |_, weight| weight * weight);
    let usual = (square / GROUP as f32).sqrt();
    group.map(|weight| usual + weight.abs())
}

/// The sum over a group, in lanes.
#[inline(always)]
fn sum<const GROUP: usize>(group: &[f32; GROUP], of: impl Fn(usize, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    for (chunk, values) in group.as_chunks::<LANES>().0.iter().enumerate() {
        for (lane, (sum, value)) in lanes.iter_mut().zip(values).enumerate() {
            *sum += of(chunk * LANES + lane, *value);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}
