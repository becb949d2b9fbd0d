//! How activations are rounded, and where their codes lie.

use super::*;

const LARGEST: i32 = MAX_CODE as i32;

/// Scale, codes and their sum, which every tier finds.
fn rounded(x: &[f32; ORDER]) -> (f32, [i32; ORDER], f32) {
    rounded_to(x, MAX_CODE)
}

fn rounded_to(x: &[f32; ORDER], most: f32) -> (f32, [i32; ORDER], f32) {
    struct Rounded<'a>(&'a [f32; ORDER], f32);
    impl Kernel for Rounded<'_> {
        type Output = (f32, [i32; ORDER], f32);

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let (scale, inverse) = scale(largest(simd, self.0), self.1);
            let mut shifted = [0.0; ORDER];
            let sum = round(simd, self.0, inverse, &mut shifted);
            (scale, shifted.map(code), sum)
        }
    }
    let mut all = Tier::all().into_iter().map(|tier| tier.run(Rounded(x, most)));
    let first = all.next().unwrap();
    assert!(all.all(|other| other == first || other.0.is_nan() && first.0.is_nan()));
    first
}

#[test]
fn the_largest_gets_the_largest_code_and_ties_go_to_even() {
    let mut x = [0.0; ORDER];
    x[..7].copy_from_slice(&[-65_278.0, 1.0, 3.0, 5.0, -3.0, 2.4, 65_277.9]);
    let (scale, codes, sum) = rounded(&x);
    assert_eq!(scale, 2.0);
    assert_eq!(codes[..8], [-LARGEST, 0, 2, 2, -2, 1, LARGEST, 0]);
    assert_eq!(sum, 3.0);
    let mut x = [0.0; ORDER];
    x[..5].copy_from_slice(&[-254.0, 1.0, 3.0, 5.0, 253.9]);
    assert_eq!(rounded_to(&x, MAX_BYTE_CODE).0, 2.0);
    assert_eq!(rounded_to(&x, MAX_BYTE_CODE).1[..6], [-127, 0, 2, 2, 127, 0]);
}

#[test]
fn no_magnitude_overflows_a_code() {
    for exponent in -126..=127 {
        for mantissa in [1.0, 1.3, 1.7, 1.999_999_9] {
            let largest = mantissa * 2f32.powi(exponent);
            let mut x = [largest; ORDER];
            x[1] = -largest;
            let (scale, codes, sum) = rounded(&x);
            if scale > 0.0 {
                assert_eq!(codes[..2], [LARGEST, -LARGEST], "{largest:e}");
                assert_eq!(sum, 30.0 * MAX_CODE);
            } else {
                assert!(largest < MAX_CODE * f32::MIN_POSITIVE * 1.001, "{largest:e}");
                assert_eq!(codes, [0; ORDER]);
            }
        }
    }
}

#[test]
fn every_code_is_its_two_bytes() {
    for first in (-LARGEST..=LARGEST).step_by(ORDER) {
        let codes: [i32; ORDER] = std::array::from_fn(|i| (first + i as i32).min(LARGEST));
        let (mut high, mut low) = ([MaybeUninit::new(0); ORDER], [MaybeUninit::new(0); ORDER]);
        split(&codes.map(|code| code as f32 + ROUND), &mut high, &mut low);
        // SAFETY: all of them were set.
        let set = |bytes: [MaybeUninit<i8>; ORDER]| bytes.map(|byte| unsafe { byte.assume_init() });
        for ((code, high), low) in codes.iter().zip(set(high)).zip(set(low)) {
            assert_eq!(*code, 256 * i32::from(high) + i32::from(low));
            assert!(high > i8::MIN, "{code}"); // Sums of the upper bytes have that bound.
        }
    }
}

#[test]
fn zeros_have_no_scale_and_what_is_not_finite_none_that_is_a_number() {
    assert_eq!(rounded(&[0.0; ORDER]), (0.0, [0; ORDER], 0.0));
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 0..ORDER {
            let mut x = [1.0; ORDER];
            x[at] = bad;
            assert!(rounded(&x).0.is_nan(), "{bad} at {at}");
        }
    }
}

#[test]
fn lanes_hold_inputs_that_lie_side_by_side_one_vector_apart() {
    fn places<T, const GROUP: usize, const V: usize>(from: fn(i32) -> T)
    where
        T: Copy + PartialEq + std::fmt::Debug,
    {
        let (inputs, in_vector) = (3 * GROUP, VECTOR_BYTES / size_of::<T>());
        let mut row = vec![MaybeUninit::new(from(-1)); lanes_stride(inputs)];
        for group in 0..3 {
            let input = |i: usize| (group * GROUP + i) as f32 + ROUND;
            lanes::<T, GROUP, V>(&mut row, group, &std::array::from_fn(input), from);
        }
        for input in 0..inputs {
            let piece = input / (V * in_vector) * (V * in_vector);
            let at = piece + (input - piece) % V * in_vector + (input - piece) / V;
            // SAFETY: all of them were set.
            assert_eq!(unsafe { row[at].assume_init() }, from(input as i32), "{GROUP} {V}");
        }
    }
    places::<i16, SHORT_GROUP, 2>(word);
    places::<i16, 32, 2>(word);
    places::<i16, 128, 2>(word);
    places::<i16, 32, 4>(word);
    places::<i16, 64, 4>(word);
    places::<i16, 128, 4>(word);
    places::<i8, SHORT_GROUP, 1>(low_byte);
    places::<i8, 32, 1>(low_byte);
    places::<i8, 32, 2>(low_byte);
    places::<i8, 64, 2>(low_byte);
    places::<i8, 128, 2>(low_byte);
}

#[test]
fn evens_come_first() {
    let ordered = evens_first(&std::array::from_fn(|i| i as f32));
    assert_eq!(ordered[..3], [0.0, 2.0, 4.0]);
    assert_eq!(ordered[15..18], [30.0, 1.0, 3.0]);
}
