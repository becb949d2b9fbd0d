//! Activations rounded to 8 bits, each group of inputs with a scale of its own.

use super::super::Tier;
use super::super::simd::{Kernel, Simd};
use super::{Bits, Call};
use crate::pool::for_each_mut;

/// Inputs within which the order of 4-bit codes is changed.
const ORDER: usize = 32;
/// Adding it moves the whole number nearest to a small f32, ties to even, into the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23
/// Largest magnitude of a code.
const MAX_CODE: f32 = 127.0;
/// Bytes between rows beyond their codes: vectors may reach past the end of a row, and rows of a power
/// of two do not compete for the same places of the cache.
const PADDING: usize = 128;

/// Quantized rows.
///
/// A group of activations is `scale · code` with `scale = max |x| / 127` and codes rounded to the
/// nearest whole number, ties to even. A group of magnitudes below what f32 has full precision for
/// counts as zero; a group with a value that is not finite gets a scale that is not a number, so
/// that what is computed with it is none either.
pub(super) struct Activations {
    /// Rows of codes, `stride` apart. Beside 4-bit weights, every 32 inputs come in another order:
    /// the 16 even ones, then the 16 odd ones, which is how half bytes come apart.
    codes: Vec<i8>,
    stride: usize,
    inputs: usize,
    groups: usize,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    /// The scale times the sum of the codes, `[rows, groups]`.
    sums: Vec<f32>,
}

impl Activations {
    /// Quantizes the rows of `call` for the groups and bits of its weight.
    pub(super) fn quantize(tier: Tier, call: &Call<'_>) -> Activations {
        let (rows, inputs, groups) = (call.rows(), call.weight.inputs, call.weight.groups());
        let stride = inputs + PADDING;
        let mut all = Activations {
            codes: vec![0; rows * stride],
            stride,
            inputs,
            groups,
            scales: vec![0.0; rows * groups],
            sums: vec![0.0; rows * groups],
        };
        let codes = all.codes.chunks_exact_mut(stride);
        let scales = all.scales.chunks_exact_mut(groups);
        let sums = all.sums.chunks_exact_mut(groups);
        let each = codes.zip(scales).zip(sums).zip(call.x.chunks_exact(inputs));
        let mut each: Vec<_> = each.collect();
        // One row takes a microsecond or two: less than a task costs.
        let task_rows = if call.parallel { 4 } else { rows.max(1) };
        for_each_mut(&mut each.chunks_mut(task_rows).collect::<Vec<_>>(), |_, some| {
            for (((codes, scales), sums), x) in some.iter_mut() {
                let (bits, group) = (call.weight.bits, call.weight.group);
                tier.run(Row { x, bits, group, codes, scales, sums });
            }
        });
        all
    }

    /// The codes of one row and [`PADDING`] zeros.
    #[inline(always)]
    pub(super) fn padded_codes(&self, row: usize) -> &[i8] {
        &self.codes[row * self.stride..][..self.stride]
    }

    /// The scales of the groups of one row.
    #[inline(always)]
    pub(super) fn scales(&self, row: usize) -> &[f32] {
        &self.scales[row * self.groups..][..self.groups]
    }

    /// The scales times the sums of the codes of the groups of one row.
    #[inline(always)]
    pub(super) fn sums(&self, row: usize) -> &[f32] {
        &self.sums[row * self.groups..][..self.groups]
    }

    /// All codes as 16-bit numbers, `[rows, inputs]`.
    pub(super) fn wide_codes(&self) -> Vec<i16> {
        let rows = self.codes.chunks_exact(self.stride);
        rows.flat_map(|row| row[..self.inputs].iter().map(|&code| i16::from(code))).collect()
    }
}

/// One row to quantize.
struct Row<'a> {
    x: &'a [f32],
    bits: Bits,
    group: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let params = self.scales.iter_mut().zip(self.sums);
        let groups = self.x.chunks_exact(self.group).zip(self.codes.chunks_exact_mut(self.group));
        for ((x, codes), (scale_to, sum_to)) in groups.zip(params) {
            let (scale, inverse) = scale(largest(x));
            let mut sum = 0;
            for (x, codes) in x.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
                sum += round(x, inverse, codes);
                if self.bits == Bits::Four {
                    *codes = evens_first(codes);
                }
            }
            *scale_to = scale;
            *sum_to = scale * sum as f32;
        }
    }
}

/// The largest magnitude; infinity and NaN count as larger than any other.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // Magnitudes order as their bits do.
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    f32::from_bits(x.iter().map(magnitude).max().unwrap_or(0))
}

/// The scale of a group and the factor that takes activations to codes.
#[inline(always)]
fn scale(largest: f32) -> (f32, f32) {
    let scale = largest / MAX_CODE;
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if scale < f32::MIN_POSITIVE {
        (0.0, 0.0)
    } else {
        (scale, 1.0 / scale)
    }
}

/// Rounds `x · inverse`; returns the sum of the codes.
#[inline(always)]
fn round(x: &[f32; ORDER], inverse: f32, codes: &mut [i8; ORDER]) -> i32 {
    let mut sum = 0;
    for (x, code) in x.iter().zip(codes) {
        let rounded = (x * inverse + ROUND).to_bits().wrapping_sub(ROUND.to_bits());
        *code = rounded as i8; // Within ±127 for finite x: x · inverse is, but for two roundings.
        sum += i32::from(*code);
    }
    sum
}

#[inline(always)]
fn evens_first(codes: &[i8; ORDER]) -> [i8; ORDER] {
    let mut ordered = [0; ORDER];
    for i in 0..ORDER / 2 {
        ordered[i] = codes[2 * i];
        ordered[ORDER / 2 + i] = codes[2 * i + 1];
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(x: &[f32; ORDER]) -> (f32, [i8; ORDER]) {
        let (scale, inverse) = scale(largest(x));
        let mut codes = [0; ORDER];
        let sum = round(x, inverse, &mut codes);
        assert_eq!(sum, codes.iter().map(|&code| i32::from(code)).sum::<i32>());
        (scale, codes)
    }

    #[test]
    fn the_largest_gets_the_largest_code_and_ties_go_to_even() {
        let mut x = [0.0; ORDER];
        x[..7].copy_from_slice(&[-254.0, 1.0, 3.0, 5.0, -3.0, 2.4, 253.9]);
        let (scale, codes) = rounded(&x);
        assert_eq!(scale, 2.0);
        assert_eq!(codes[..8], [-127, 0, 2, 2, -2, 1, 127, 0]);
    }

    #[test]
    fn no_magnitude_overflows_a_code() {
        for exponent in -126..=127 {
            for mantissa in [1.0, 1.3, 1.7, 1.999_999_9] {
                let largest = mantissa * 2f32.powi(exponent);
                let mut x = [largest; ORDER];
                x[1] = -largest;
                let (scale, codes) = rounded(&x);
                if scale > 0.0 {
                    assert_eq!(codes[..2], [127, -127], "{largest:e}");
                } else {
                    assert!(largest < 127.0 * f32::MIN_POSITIVE * 1.001, "{largest:e}");
                    assert_eq!(codes, [0; ORDER]);
                }
            }
        }
    }

    #[test]
    fn zeros_have_no_scale_and_what_is_not_finite_none_that_is_a_number() {
        assert_eq!(rounded(&[0.0; ORDER]), (0.0, [0; ORDER]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; ORDER];
            x[5] = bad;
            assert!(rounded(&x).0.is_nan());
        }
    }

    #[test]
    fn evens_come_first() {
        let ordered = evens_first(&std::array::from_fn(|i| i as i8));
        assert_eq!(ordered[..3], [0, 2, 4]);
        assert_eq!(ordered[15..18], [30, 1, 3]);
    }
}
