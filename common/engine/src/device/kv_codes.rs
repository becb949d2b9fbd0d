//! Keys and values in 8 bits: how the numbers of a head become codes and scales, the same on every device, and back.
//!
//! A head is coded by itself as its position is written, so that no row's codes depend on those that travel with it.

use cake_checkpoint::KvDtype;
use half::bf16;

use crate::random::unit;

/// Largest magnitude of a code.
const MAX_CODE: f32 = 127.0;
/// Adding it moves the whole number nearest to a small f32, ties to even, into the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// Codes the numbers of a head: `codes` are as many signed bytes, `scales` as many little-endian bf16 as the head has groups.
///
/// A group of magnitudes below what f32 has full precision for becomes zeros; one with a number that is not finite is NaN
/// when it is read, so that what went wrong is not hidden.
pub(crate) fn encode(head: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let groups = head.chunks(KvDtype::GROUP).zip(codes.chunks_mut(KvDtype::GROUP));
    for ((numbers, codes), stored) in groups.zip(scales.as_chunks_mut().0) {
        let scale = scale_of(numbers);
        *stored = scale.to_le_bytes();
        let scale = scale.to_f32();
        // Where all is zero, whatever zeros are divided by.
        let divisor = if scale == 0.0 { f32::INFINITY } else { scale };
        for (code, number) in codes.iter_mut().zip(numbers) {
            // Less than 127.5, as rounding a scale takes less of it than one part in 256: the low byte is the code.
            *code = (number / divisor + ROUND).to_bits() as u8;
        }
    }
}

fn scale_of(numbers: &[f32]) -> bf16 {
    // A NaN is larger than everything.
    let larger = |most: f32, x: &f32| if x.abs() > most || x.is_nan() { x.abs() } else { most };
    let largest = numbers.iter().fold(0.0, larger);
    if !largest.is_finite() {
        return bf16::NAN;
    }
    let scale = bf16::from_f32(largest / MAX_CODE);
    if scale.to_f32() < f32::MIN_POSITIVE { bf16::ZERO } else { scale }
}

/// The scale of a group, of the scales of a head.
#[inline(always)]
pub(crate) fn scale(scales: &[u8], group: usize) -> f32 {
    let bits = scales.as_chunks().0.get(group).map_or(0, |bytes| u16::from_le_bytes(*bytes));
    f32::from_bits(u32::from(bits) << 16)
}

/// The numbers of a head, as [`encode`] coded them.
pub(crate) fn decode(codes: &[u8], scales: &[u8]) -> impl Iterator<Item = f32> {
    let number = |(index, code): (usize, &u8)| {
        f32::from(*code as i8) * scale(scales, index / KvDtype::GROUP)
    };
    codes.iter().enumerate().map(number)
}

/// How far keys and values are off by the way they are kept.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KvError {
    /// The most that a number is off, as a part of the largest one beside it that shares its scale; of itself, where none do.
    pub most: f64,
    /// What heads of normally distributed numbers are off: the length of the error as a part of the head's, measured.
    pub typical: f64,
}

/// How far keys and values in heads of so many numbers are off if they are kept so; `None` if they are not rounded.
pub fn kv_error(kv: KvDtype, head_dim: usize) -> Option<KvError> {
    const HEADS: u64 = 64;
    let kept: fn(&[f32]) -> Vec<f32> = match kv {
        KvDtype::F32 => return None,
        KvDtype::F16 => |head| head.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect(),
        KvDtype::Q8 => |head| {
            let mut codes = vec![0; head.len()];
            let mut scales = vec![0; KvDtype::groups(head.len()) * KvDtype::Q8.scale_bytes()];
            encode(head, &mut codes, &mut scales);
            decode(&codes, &scales).collect()
        },
    };
    let most = match kv {
        KvDtype::F32 | KvDtype::F16 => 2f64.powi(-11),
        // Half a scale, and what rounding it adds.
        KvDtype::Q8 => (0.5 + 2f64.powi(-9)) / f64::from(MAX_CODE),
    };
    let (mut error, mut all) = (0.0, 0.0);
    for head in 0..HEADS {
        let numbers: Vec<f32> = (0..head_dim as u64).map(|at| normal(head, at)).collect();
        for (kept, number) in kept(&numbers).into_iter().zip(&numbers) {
            error += f64::from(kept - number).powi(2);
            all += f64::from(*number).powi(2);
        }
    }
    Some(KvError { most, typical: (error / all).sqrt() })
}

/// A normally distributed number (Box and Muller, 1958).
fn normal(seed: u64, position: u64) -> f32 {
    let (radius, angle) = (1.0 - unit(2 * seed, position), unit(2 * seed + 1, position));
    ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn through(head: &[f32]) -> Vec<f32> {
        let mut codes = vec![0; head.len()];
        let mut scales = vec![0; 2 * KvDtype::groups(head.len())];
        encode(head, &mut codes, &mut scales);
        decode(&codes, &scales).collect()
    }

    #[test]
    fn every_number_is_off_by_half_a_scale_at_most() {
        let mut random = Random::new(7);
        let most = kv_error(KvDtype::Q8, 32).unwrap().most;
        for case in 0..500 {
            let magnitude = 10f32.powi(case % 40 - 20);
            let head: Vec<f32> =
                (0..1 + random.below(200)).map(|_| random.signed().powi(3) * magnitude).collect();
            for (group, kept) in
                head.chunks(KvDtype::GROUP).zip(through(&head).chunks(KvDtype::GROUP))
            {
                let largest = group.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
                for (number, kept) in group.iter().zip(kept) {
                    let error = (f64::from(*number) - f64::from(*kept)).abs();
                    // f32 rounds the quotient, too.
                    assert!(error <= largest * most * (1.0 + 1e-5), "{number} became {kept}");
                }
            }
        }
    }

    #[test]
    fn codes_are_rounded_to_the_nearest_ties_to_even() {
        let head = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.4, -127.0];
        assert_eq!(through(&head), [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -126.0, -127.0]);
    }

    #[test]
    fn groups_do_not_know_of_each_other() {
        let (small, large) = ([1e-3; KvDtype::GROUP], [1e3; KvDtype::GROUP]);
        let both: Vec<f32> = small.into_iter().chain(large).collect();
        assert_eq!(through(&both)[..KvDtype::GROUP], through(&small));
        assert_eq!(through(&both)[KvDtype::GROUP..], through(&large));
    }

    #[test]
    fn what_is_no_number_stays_none_and_what_is_tiny_is_zero() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1, 2] {
                let mut head = [1.0; 3];
                head[at] = odd;
                assert!(through(&head).iter().all(|kept| kept.is_nan()), "{odd} at {at}");
            }
        }
        assert_eq!(through(&[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(through(&[1e-40, -1e-42]), [0.0, 0.0]);
    }

    #[test]
    fn the_error_that_is_told_is_that_of_the_codes() {
        assert_eq!(kv_error(KvDtype::F32, 64), None);
        let [half, coded] = [KvDtype::F16, KvDtype::Q8].map(|kv| kv_error(kv, 64).unwrap());
        // The largest of 32 is about 2.37 standard deviations, a step that ÷ 127, and an error uniform in it.
        let expected = 2.37 / 127.0 / 12f64.sqrt();
        assert!((coded.typical / expected - 1.0).abs() < 0.1, "{coded:?}, {expected}");
        assert!(half.typical < coded.typical / 10.0 && half.typical < half.most);
    }
}
