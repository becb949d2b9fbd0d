//! Larger blocks against what llama.cpp's quantizers make of the same numbers, and at the edges of what they have.

use super::{BLOCK, Scales, encode_blocks, encode_rows, q4_k, q5_k, q6_k};
use crate::dtype::Dtype;
use crate::{EncodeError, Encoding, FloatType, GgmlType, RowsAt};

type Encode = fn(&[f32], &mut [u8]) -> Result<(), EncodeError>;

/// Each kind: the encoder, the same without wide registers, and the reference's squared error for each squared number of
/// [`numbers`]: of `quantize_row_q4_K_ref` and its like, decoded by `dequantize_row_q4_K` and its like.
const KINDS: [(GgmlType, Encode, Encode, f64); 3] = [
    (GgmlType::Q4K, |it, out| wide(it, out, q4_k), |it, out| narrow(it, out, q4_k), 4.819821e-3),
    (GgmlType::Q5K, |it, out| wide(it, out, q5_k), |it, out| narrow(it, out, q5_k), 1.242689e-3),
    (GgmlType::Q6K, |it, out| wide(it, out, q6_k), |it, out| narrow(it, out, q6_k), 2.908559e-4),
];

fn wide<const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> Scales,
) -> Result<(), EncodeError> {
    encode_rows(values, out, encode)
}

fn narrow<const BYTES: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> Scales,
) -> Result<(), EncodeError> {
    encode_blocks(values, out, encode)
}

/// Sums of four numbers of 16 bits each from xorshift64, in rows of 1024 with five magnitudes.
fn numbers() -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |index: i32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let sum: i64 = (0..4).map(|at| (state >> (16 * at) & 0xffff) as i64).sum();
        ((sum - 2 * 65535) as f64 / 65536.0 * 2f64.powi(index / 1024 % 5 - 2)) as f32
    };
    (0..1 << 16).map(&mut next).collect()
}

fn encoded(kind: GgmlType, encode: Encode, values: &[f32]) -> Result<Vec<u8>, EncodeError> {
    let mut out = vec![0xaa; values.len() / BLOCK * kind.block_bytes()];
    encode(values, &mut out)?;
    Ok(out)
}

fn back(kind: GgmlType, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; blocks.len() / kind.block_bytes() * BLOCK];
    Encoding::Ggml(kind).decode_rows(RowsAt::start(BLOCK), &[(Dtype::U8, blocks)], &mut out);
    out
}

/// Squared error for each squared number.
fn error(values: &[f32], found: &[f32]) -> f64 {
    let squares =
        |it: &dyn Fn(usize) -> f64| (0..values.len()).map(|at| it(at).powi(2)).sum::<f64>();
    squares(&|at| f64::from(found[at]) - f64::from(values[at]))
        / squares(&|at| f64::from(values[at]))
}

#[test]
fn errors_are_no_larger_than_the_references() {
    let values = numbers();
    for (kind, wide, _, reference) in KINDS {
        let found = error(&values, &back(kind, &encoded(kind, wide, &values).unwrap()));
        println!("{kind}: {found:.4e}, reference {reference:.4e}");
        assert!(found <= reference, "{kind}: {found:e}");
    }
}

#[test]
fn wider_registers_give_the_same_bytes() {
    let odd = (0..BLOCK as u32 * 200).map(|it| f32::from_bits(it.wrapping_mul(0x9e37_79b9)));
    let odd = odd.map(|value| if value.abs() < 1e6 { value } else { 0.25 });
    let values: Vec<f32> = numbers().into_iter().take(BLOCK * 40).chain(odd).collect();
    for (kind, wide, narrow, _) in KINDS {
        let [wide, narrow] = [wide, narrow].map(|it| encoded(kind, it, &values).unwrap());
        assert!(wide == narrow, "{kind}");
    }
}

#[test]
fn blocks_of_all_sorts_come_back_within_a_step() {
    let ramp = |at: usize| at as f32 / 255.0;
    let cases: [&dyn Fn(usize) -> f32; 9] = [
        &|_| 0.0,
        &|_| -0.0,
        &|_| 3.5,
        &|_| -3.5,
        &|at| ramp(at) + 100.0,
        &|at| -ramp(at) - 1.0,
        &|at| if at == 77 { -6.0 } else { 0.0 },
        &|at| if at % 32 == 5 { 1.0 } else { 1e-30 },
        &|at| (ramp(at) - 0.5) * 1e-36,
    ];
    for (case, value) in cases.into_iter().enumerate() {
        let values: Vec<f32> = (0..BLOCK).map(value).collect();
        for (kind, wide, ..) in KINDS {
            let found = back(kind, &encoded(kind, wide, &values).unwrap());
            let largest = values.iter().fold(0f32, |most, it| most.max(it.abs()));
            // A step is a part of the largest, but for what half precision does not have.
            let step = largest / 12.0 + 1e-7;
            for (at, (value, found)) in values.iter().zip(&found).enumerate() {
                let near = (value - found).abs() <= step;
                assert!(near, "{kind} case {case}: {value} at {at} became {found}");
            }
        }
    }
}

#[test]
fn numbers_that_blocks_do_not_have_are_refused_by_their_place() {
    for (kind, wide, ..) in KINDS {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [0.5; 2 * BLOCK];
            values[300] = value;
            let refused = encoded(kind, wide, &values).unwrap_err();
            assert!(matches!(refused, EncodeError::NotFinite { index: 300, .. }), "{refused}");
        }
        for value in [f32::MAX, 2.9e8, -3.1e8] {
            let mut values = [0.5; 2 * BLOCK];
            values[257] = value;
            let refused = encoded(kind, wide, &values).unwrap_err();
            let expected =
                EncodeError::TooLarge { index: BLOCK, value: value.abs(), params: FloatType::F16 };
            assert_eq!(refused, expected, "{kind}");
        }
        assert_eq!(encoded(kind, wide, &[]), Ok(Vec::new()));
    }
}
