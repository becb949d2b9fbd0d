use super::encode::{BLOCK, encode_blocks};
use super::{q4_0, q4_1, q5_0, q5_1, q8_0};
use crate::{EncodeError, FloatType};

/// Made by `testdata/make_blocks.py`: 32 numbers, then the same as `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1`, of each block.
const BLOCKS: &[u8] = include_bytes!("testdata/blocks.bin");

type Encode = fn(&[f32], &mut [u8]) -> Result<(), EncodeError>;

/// Each type: bytes of a block, the encoder, the same without wide registers.
const TYPES: [(usize, Encode, Encode); 5] = [
    (q8_0::BLOCK_BYTES, q8_0::encode_rows, |numbers, out| {
        encode_blocks::<{ q8_0::BLOCK_BYTES }>(numbers, out, q8_0::encode)
    }),
    (q4_0::BLOCK_BYTES, q4_0::encode_rows, |numbers, out| {
        encode_blocks::<{ q4_0::BLOCK_BYTES }>(numbers, out, q4_0::encode)
    }),
    (q4_1::BLOCK_BYTES, q4_1::encode_rows, |numbers, out| {
        encode_blocks::<{ q4_1::BLOCK_BYTES }>(numbers, out, q4_1::encode)
    }),
    (q5_0::BLOCK_BYTES, q5_0::encode_rows, |numbers, out| {
        encode_blocks::<{ q5_0::BLOCK_BYTES }>(numbers, out, q5_0::encode)
    }),
    (q5_1::BLOCK_BYTES, q5_1::encode_rows, |numbers, out| {
        encode_blocks::<{ q5_1::BLOCK_BYTES }>(numbers, out, q5_1::encode)
    }),
];

/// Bytes of a block of those that store a minimum.
const HAVE_MINIMA: [usize; 2] = [q4_1::BLOCK_BYTES, q5_1::BLOCK_BYTES];

#[test]
fn blocks_are_those_of_the_reference() {
    let all = 4 * BLOCK + TYPES.map(|(bytes, ..)| bytes).iter().sum::<usize>();
    assert!(BLOCKS.len().is_multiple_of(all) && BLOCKS.len() > 200 * all);
    for (index, case) in BLOCKS.chunks_exact(all).enumerate() {
        let (numbers, mut expected) = case.split_at(4 * BLOCK);
        let mut values = [0.0; BLOCK];
        FloatType::F32.widen(numbers, &mut values);
        for (bytes, wide, portable) in TYPES {
            for encode in [wide, portable] {
                let mut found = vec![0xaa; bytes];
                if HAVE_MINIMA.contains(&bytes) && values.iter().any(|it| *it < -65_519.0) {
                    // The reference writes a minimum that is not finite.
                    let refused = encode(&values, &mut found).unwrap_err();
                    assert!(matches!(refused, EncodeError::TooLarge { .. }), "{refused}");
                    continue;
                }
                encode(&values, &mut found).unwrap();
                let mut expected = expected[..bytes].to_vec();
                if HAVE_MINIMA.contains(&bytes) && values.iter().all(|it| *it >= 0.0) {
                    // Of zeros of both signs, which one is the least depends on how they are gone through.
                    for block in [&mut found, &mut expected] {
                        block[3] &= 0x7f;
                    }
                }
                assert_eq!(found, expected, "block {index}, {bytes} bytes: {values:?}");
            }
            expected = &expected[bytes..];
        }
    }
}

#[test]
fn wider_registers_give_the_same_bytes() {
    for (bytes, wide, portable) in TYPES {
        // A minimum is stored as it is, a scale is a part of the largest.
        let most = if HAVE_MINIMA.contains(&bytes) { 6e4 } else { 4e5 };
        let values: Vec<f32> = (0..BLOCK as u32 * 4000)
            .map(|index| f32::from_bits(index.wrapping_mul(0x9e37_79b9)))
            .map(|value| if value.abs() < most { value } else { 0.25 })
            .collect();
        let [mut found, mut expected] = [0, 0].map(|fill| vec![fill; values.len() / BLOCK * bytes]);
        wide(&values, &mut found).unwrap();
        portable(&values, &mut expected).unwrap();
        assert!(found == expected, "{bytes}");
    }
}

#[test]
fn numbers_that_blocks_do_not_have_are_refused() {
    for (bytes, encode, _) in TYPES {
        let mut out = vec![0; 2 * bytes];
        for value in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [0.5; 2 * BLOCK];
            values[40] = value;
            let error = encode(&values, &mut out).unwrap_err();
            assert!(matches!(error, EncodeError::NotFinite { index: 40, .. }), "{error}");
        }
        let mut values = [0.5; 2 * BLOCK];
        values[33] = -1e7; // More than 127 times the largest half.
        let error = encode(&values, &mut out).unwrap_err();
        let expected = EncodeError::TooLarge { index: 32, value: 1e7, params: FloatType::F16 };
        assert_eq!(error, expected);
        assert_eq!(encode(&[], &mut []), Ok(()));
    }
}
