//! From plain numbers to numbers of 4 bits behind powers of two.
//!
//! The Open Compute Project's formula takes the exponent that brings the largest magnitude of a group to 4 or more, so that what
//! is then beyond 6, the largest number, becomes 6. The next exponent has no such numbers, but steps twice as wide: each
//! group gets the one of the two with less squared error, the formula's where both have the same.
//!
//! Only operations of IEEE 754, in an order that does not depend on the machine: equal weights give equal bytes everywhere.

use super::kind::Fp4;
use crate::encode_error::EncodeError;

const GROUP: usize = Fp4::Mx.group();
/// Lanes in which errors are summed; a group is a multiple.
const LANES: usize = 8;
/// What is added to an exponent in a scale's byte.
const BIAS: i32 = 127;
/// Exponent of 4, the largest power of two among the numbers.
const LARGEST_EXPONENT: i32 = 2;
/// The largest exponent of a scale whose numbers all are finite in f32: 6 times 2 to the next is not.
const MOST: i32 = 125;

/// Encodes whole groups; of either part nothing is written where there is no room for it.
///
/// # Errors
/// [`EncodeError::NotFinite`]
///
/// # Panics
/// If `weights` are not whole groups, or there is not as much room as they take.
pub(super) fn encode_mx(
    weights: &[f32],
    codes: Option<&mut [u8]>,
    scales: Option<&mut [u8]>,
) -> Result<(), EncodeError> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        /// The same operations in wider registers: the same bytes.
        #[target_feature(enable = "avx2")]
        fn in_avx2(
            weights: &[f32],
            codes: Option<&mut [u8]>,
            scales: Option<&mut [u8]>,
        ) -> Result<(), EncodeError> {
            encode_portable(weights, codes, scales)
        }
        // SAFETY: the processor has AVX2, as was just seen.
        return unsafe { in_avx2(weights, codes, scales) };
    }
    encode_portable(weights, codes, scales)
}

/// Always inlined, so that the compiler makes one for every kind of register.
#[inline(always)]
fn encode_portable(
    weights: &[f32],
    mut codes: Option<&mut [u8]>,
    mut scales: Option<&mut [u8]>,
) -> Result<(), EncodeError> {
    let (groups, rest) = weights.as_chunks::<GROUP>();
    assert!(rest.is_empty(), "rows are whole groups");
    for (index, group) in groups.iter().enumerate() {
        // The bits of magnitudes are in their order, and those of what is not finite come last.
        let largest = group.iter().map(|weight| weight.abs().to_bits()).fold(0, u32::max);
        let largest = f32::from_bits(largest);
        if !largest.is_finite() {
            return Err(not_finite(group, index * GROUP));
        }
        let exponent = best_exponent(group, largest);
        if let Some(scales) = &mut scales {
            scales[index] = (exponent + BIAS) as u8; // From 0 to 252, as exponents are bounded.
        }
        if let Some(codes) = &mut codes {
            let found = codes_of(group, exponent);
            let (pairs, _) = found.as_chunks::<2>();
            let codes = codes[index * GROUP / 2..][..GROUP / 2].iter_mut();
            codes.zip(pairs).for_each(|(out, [even, odd])| *out = even | odd << 4);
        }
    }
    Ok(())
}

/// The exponent of a group's scale.
#[inline(always)]
fn best_exponent(group: &[f32; GROUP], largest: f32) -> i32 {
    if largest == 0.0 {
        return -BIAS;
    }
    let usual = (exponent(largest) - LARGEST_EXPONENT).clamp(-BIAS, MOST);
    let next = (usual + 1).min(MOST);
    // In units of the scale, of which the next one's are twice as large.
    let is_nearer = 4.0 * squared_error(group, next) < squared_error(group, usual);
    if is_nearer { next } else { usual }
}

/// The exponent of the largest power of two that is not more than a positive number.
fn exponent(number: f32) -> i32 {
    let bits = number.to_bits();
    match (bits >> 23) as i32 {
        0 => bits.ilog2() as i32 - 149, // Below the least normal number.
        exponent => exponent - 127,
    }
}

/// The inverse of a scale: exact, for every exponent that a scale gets here.
#[inline(always)]
fn inverse(exponent: i32) -> f32 {
    f32::from_bits(((127 - exponent) as u32) << 23)
}

/// The sum of squared errors behind that scale, in units of it.
#[inline(always)]
fn squared_error(group: &[f32; GROUP], exponent: i32) -> f32 {
    let inverse = inverse(exponent);
    let mut sums = [0f32; LANES];
    let (chunks, _) = group.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, weight) in sums.iter_mut().zip(chunk) {
            let magnitude = (weight * inverse).abs();
            let missed = magnitude - nearest(magnitude).1;
            *sum += missed * missed;
        }
    }
    sums.iter().sum()
}

/// The numbers of a group behind that scale.
#[inline(always)]
fn codes_of(group: &[f32; GROUP], exponent: i32) -> [u8; GROUP] {
    let inverse = inverse(exponent);
    let mut codes = [0; GROUP];
    for (code, weight) in codes.iter_mut().zip(group) {
        let scaled = weight * inverse;
        let (magnitude, _) = nearest(scaled.abs());
        // What becomes 0 is that of one sign, as a group of zeros is.
        *code = magnitude | if scaled < 0.0 && magnitude != 0 { 8 } else { 0 };
    }
    codes
}

/// The nearest of the numbers of 4 bits without their sign, of two that are as near the one whose last bit is 0, and 6 for what is
/// beyond: its bits, and itself. Without a table, so that compilers do it for many at once.
#[inline(always)]
fn nearest(magnitude: f32) -> (u8, f32) {
    // Between each two numbers, whether their middle is passed; one that is an even number's is its, too.
    let passed = [
        magnitude > 0.25,
        magnitude >= 0.75,
        magnitude > 1.25,
        magnitude >= 1.75,
        magnitude > 2.5,
        magnitude >= 3.5,
        magnitude > 5.0,
    ];
    let (mut code, mut number) = (0, 0.0);
    for (passed, step) in passed.into_iter().zip([0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 2.0]) {
        code += u8::from(passed);
        number += if passed { step } else { 0.0 };
    }
    (code, number)
}

#[cold]
fn not_finite(group: &[f32; GROUP], start: usize) -> EncodeError {
    let inside = group.iter().position(|weight| !weight.is_finite()).unwrap_or(0);
    EncodeError::NotFinite { index: start + inside, value: group[inside] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::narrow::E2M1;
    use crate::{Encoding, RowsAt};

    fn encoded(weights: &[f32]) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
        let (mut codes, mut scales) = (vec![0; weights.len() / 2], vec![0; weights.len() / GROUP]);
        encode_mx(weights, Some(&mut codes), Some(&mut scales))?;
        Ok((codes, scales))
    }

    fn back(codes: &[u8], scales: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; codes.len() * 2];
        let parts = [(Dtype::U8, codes), (Dtype::F8E8M0, scales)];
        Encoding::Fp4(Fp4::Mx).decode_rows(RowsAt::start(GROUP), &parts, &mut out);
        out
    }

    #[test]
    fn what_the_format_has_is_kept_to_the_bit() {
        for exponent in [-127, -126, -9, 0, 17, MOST] {
            let scale = 2f64.powi(exponent);
            let group: Vec<f32> = (0..GROUP)
                .map(|at| (f64::from(E2M1[at % 16]) * scale) as f32)
                .map(|weight| if weight == 0.0 { 0.0 } else { weight })
                .collect();
            let (codes, scales) = encoded(&group).unwrap();
            assert_eq!(back(&codes, &scales), group, "{exponent}");
        }
        let (codes, scales) = encoded(&[0.0; GROUP]).unwrap();
        assert_eq!((codes, scales), (vec![0; GROUP / 2], vec![0]));
    }

    #[test]
    fn every_number_goes_to_the_nearest_and_from_the_middle_to_the_even_one() {
        for (low, numbers) in E2M1[..8].windows(2).enumerate() {
            let middle = f32::midpoint(numbers[0], numbers[1]);
            let found = [0.999, 1.0, 1.001].map(|factor| nearest(middle * factor));
            let number = |code: usize| (code as u8, E2M1[code]);
            assert_eq!(found, [low, low + low % 2, low + 1].map(number));
        }
        assert_eq!((nearest(7.9), nearest(1e9), nearest(0.0)), ((7, 6.0), (7, 6.0), (0, 0.0)));
    }

    #[test]
    fn a_group_gets_the_exponent_with_less_error() {
        // 7.5 would become 6, and is near 8.
        let mut group = [0.0; GROUP];
        group[3] = 7.5;
        let (codes, scales) = encoded(&group).unwrap();
        assert_eq!((back(&codes, &scales)[3], scales[0]), (8.0, 128));
        // Among many small ones it is these that count.
        let mut group = [0.5; GROUP];
        group[3] = 6.5;
        let (codes, scales) = encoded(&group).unwrap();
        assert_eq!((back(&codes, &scales)[3], scales[0]), (6.0, 127));
    }

    #[test]
    fn the_largest_and_the_least_numbers_stay_finite_and_others_are_refused_by_their_place() {
        let mut group = [f32::MAX; GROUP];
        group[1] = f32::from_bits(1);
        let (codes, scales) = encoded(&group).unwrap();
        let found = back(&codes, &scales);
        assert!(
            found.iter().all(|it| it.is_finite()) && found[0] > 0.7 * f32::MAX && found[1] == 0.0
        );
        let (codes, scales) = encoded(&[f32::from_bits(1); GROUP]).unwrap();
        assert_eq!(back(&codes, &scales), [0.0; GROUP]);
        let mut two = [1.0; 2 * GROUP];
        two[GROUP + 5] = f32::NEG_INFINITY;
        let refused = encoded(&two).unwrap_err();
        assert_eq!(refused, EncodeError::NotFinite { index: GROUP + 5, value: f32::NEG_INFINITY });
    }
}
