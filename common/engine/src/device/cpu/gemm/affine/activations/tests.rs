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
fn lanes_hold_inputs_that_lie_side_by_side_one_vector_apart_and_tiles_rows_in_turn() {
    /// Of tiles, in which rows have `TURN` codes in turn.
    fn places<const TURN: usize, const GROUP: usize, const V: usize>() {
        let (inputs, in_vector) = (3 * GROUP, IN_VECTOR * TURN);
        let bits = 32 / TURN;
        for rows in [1, 2, 5] {
            let mut tile = vec![MaybeUninit::new(0); rows * lanes_stride(inputs) / TURN];
            for (row, group) in (0..rows).flat_map(|row| (0..3).map(move |group| (row, group))) {
                let input = |i: usize| ROUND - (7 * row + group * GROUP + i) as f32;
                let codes = &std::array::from_fn(input);
                lanes::<TURN, GROUP, V>(&mut tile, (row, rows), group, codes);
            }
            for (row, input) in (0..rows).flat_map(|row| (0..inputs).map(move |it| (row, it))) {
                let piece = input / (V * in_vector) * (V * in_vector);
                let at = piece + (input - piece) % V * in_vector + (input - piece) / V;
                // SAFETY: all of them were set.
                let number = unsafe { tile[at / TURN * rows + row].assume_init() };
                let code = -((7 * row + input) as i32) as u32;
                let found = (number >> (at % TURN * bits)) as i32;
                let same = (found ^ code as i32).trailing_zeros();
                assert!(same as usize >= bits, "{rows} rows, {input} of {GROUP}, {V}");
            }
        }
    }
    places::<2, SHORT_GROUP, 2>();
    places::<2, 32, 2>();
    places::<2, 128, 2>();
    places::<2, 32, 4>();
    places::<2, 64, 4>();
    places::<2, 128, 4>();
    places::<4, SHORT_GROUP, 1>();
    places::<4, 32, 1>();
    places::<4, 32, 2>();
    places::<4, 64, 2>();
    places::<4, 128, 2>();
}

#[test]
fn evens_come_first() {
    let ordered = evens_first(&std::array::from_fn(|i| i as f32));
    assert_eq!(ordered[..3], [0.0, 2.0, 4.0]);
    assert_eq!(ordered[15..18], [30.0, 1.0, 3.0]);
}

#[test]
fn tiles_are_as_few_as_can_be_and_alike_but_for_the_last() {
    for rows in 1..100 {
        let tile = tile_rows(rows, 12);
        assert!((1..=12).contains(&tile), "{rows}: {tile}");
        assert_eq!(rows.div_ceil(tile), rows.div_ceil(12), "{rows} in as few as can be");
    }
    assert_eq!([16, 13, 25, 512].map(|rows| tile_rows(rows, 12)), [8, 7, 9, 12]);
}
