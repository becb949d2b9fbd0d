//! Decoding against the package `gguf`.

use super::*;
use crate::FloatType;

/// Made by `testdata/make_blocks.py`: of each kind, by its number, 4 bytes that are the number, 4 that say how many blocks
/// follow, and each block with its weights as F32.
const DECODED: &[u8] = include_bytes!("../testdata/decoded.bin");

#[test]
fn random_blocks_are_what_the_reference_says_to_the_bit() {
    let mut rest = DECODED;
    let mut take = |count: usize| rest.split_off(..count);
    let mut seen = Vec::new();
    while let Some(head) = take(8) {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let kind = GgmlType::of_id(number(0)).unwrap();
        assert!(number(4) > 7, "{kind}");
        for block in 0..number(4) {
            let bytes = take(kind.block_bytes()).unwrap();
            let (mut expected, mut found) = (vec![0.0; kind.block()], vec![0.0; kind.block()]);
            FloatType::F32.widen(take(4 * kind.block()).unwrap(), &mut expected);
            decode(kind, bytes, &mut found);
            let bits = |all: &[f32]| all.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(&expected), "{kind}, block {block}");
        }
        seen.push(kind);
    }
    assert!(GgmlType::ALL.iter().all(|kind| seen.contains(kind)), "{seen:?}");
}

/// A block whose bytes are `(37 · i + 11) mod 256`, with f16 numbers at some places.
fn block(bytes: usize, numbers: &[(usize, u16)]) -> Vec<u8> {
    let mut block: Vec<u8> = (0..bytes).map(|at| (37 * at + 11) as u8).collect();
    for &(at, bits) in numbers {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    block
}

/// The weights at some places, and the sum of all, as the package `gguf` gives them.
#[track_caller]
fn check(kind: GgmlType, block: &[u8], expected: &[(usize, f32)], sum: f32) {
    let mut out = vec![0.0; 2 * kind.block()];
    decode(kind, &[block, block].concat(), &mut out);
    let (first, second) = out.split_at(kind.block());
    assert_eq!(first, second, "{kind}");
    for &(at, weight) in expected {
        assert_eq!(first[at], weight, "{kind} at {at}");
    }
    assert_eq!(first.iter().sum::<f32>(), sum, "{kind}");
}

/// A kind, numbers at places of a block, weights of it, and the sum of all.
type Case<const WEIGHTS: usize> = (GgmlType, &'static [(usize, u16)], [f32; WEIGHTS], f32);

const QUARTER: u16 = 0x3400;
const EIGHTH: u16 = 0x3000;

#[test]
fn blocks_of_32_are_what_ggml_says() {
    let cases: [Case<5>; 6] = [
        (GgmlType::Q4_0, &[(0, QUARTER)], [-0.75, 0.5, -2.0, -0.75, 0.0], -5.25),
        (GgmlType::Q4_1, &[(0, QUARTER), (2, EIGHTH)], [3.875, 1.125, 2.625, 2.375, 3.125], 65.25),
        (GgmlType::Q5_0, &[(0, QUARTER)], [2.25, -0.5, -3.0, 3.5, 0.25], 3.75),
        (GgmlType::Q5_1, &[(0, QUARTER), (2, EIGHTH)], [4.875, 6.125, 7.625, 4.875, 1.375], 130.25),
        (GgmlType::Q8_0, &[(0, QUARTER)], [21.25, 30.5, -32.0, -22.75, -12.0], -44.0),
        (GgmlType::Iq4Nl, &[(0, QUARTER)], [-8.75, 6.25, -31.75, -8.75, 0.25], -64.25),
    ];
    let places = [0, 1, 15, 16, 31];
    for (kind, numbers, weights, sum) in cases {
        let expected: Vec<_> = places.into_iter().zip(weights).collect();
        check(kind, &block(kind.block_bytes(), numbers), &expected, sum);
    }
    let mut bytes = block(17, &[]);
    bytes[0] = 126;
    let expected: Vec<_> = places.into_iter().zip([0.0, 1.5, -0.75, 0.75, 1.5]).collect();
    check(GgmlType::Mxfp4, &bytes, &expected, 6.25);
}

#[test]
fn blocks_of_256_are_what_ggml_says() {
    let places = [0, 1, 15, 16, 31, 32, 33, 64, 127, 128, 200, 255];
    let cases: [Case<12>; 6] = [
        (
            GgmlType::Q2K,
            &[(80, QUARTER), (82, EIGHTH)],
            [8.25, 0.0, 5.5, -0.375, -0.375, 1.875, -0.625, 2.625, 10.5, 1.875, 2.0, 1.125],
            514.75,
        ),
        (
            GgmlType::Q3K,
            &[(108, QUARTER)],
            [20.25, -27.0, -13.5, -24.0, 16.0, -5.5, 11.0, 8.5, 18.0, 0.5, 6.25, 10.5],
            239.5,
        ),
        (
            GgmlType::Q4K,
            &[(0, QUARTER), (2, EIGHTH)],
            [
                78.875, -6.375, 40.125, 78.875, 40.125, 2.0, 5.0, 105.125, 20.25, 105.75, 34.625,
                12.125,
            ],
            13_610.0,
        ),
        (
            GgmlType::Q5K,
            &[(0, QUARTER), (2, EIGHTH)],
            [
                202.875, -6.375, 40.125, 202.875, 40.125, 28.0, -1.0, 105.125, -0.75, 261.75,
                34.625, 27.125,
            ],
            29_054.0,
        ),
        (
            GgmlType::Q6K,
            &[(208, QUARTER)],
            [
                -357.75, 424.0, -79.5, -108.0, -24.0, 57.75, -168.0, -760.0, 375.0, -87.75, 272.25,
                -15.0,
            ],
            1153.0,
        ),
        (
            GgmlType::Iq4Xs,
            &[(0, QUARTER)],
            [16.25, -0.25, -22.25, 16.25, 8.75, 113.75, -1.75, 195.0, 49.0, -146.25, 285.0, -4.0],
            -2751.25,
        ),
    ];
    for (kind, numbers, weights, sum) in cases {
        let expected: Vec<_> = places.into_iter().zip(weights).collect();
        check(kind, &block(kind.block_bytes(), numbers), &expected, sum);
    }
}

#[test]
fn documented_codes_decode() {
    let codes: Vec<u8> = (0..16).map(|j| (j / 2 * 0x11) as u8 + 0x80).collect();
    let mut out = [0.0; 32];
    decode(GgmlType::Q4_0, &[&[0x00, 0x40], &codes[..]].concat(), &mut out);
    assert_eq!(out[..6], [-16.0, -16.0, -14.0, -14.0, -12.0, -12.0]);
    assert_eq!(out[16..18], [0.0, 0.0]);
}

#[test]
fn the_exponents_at_both_ends_are_numbers() {
    let largest = |e: u8| {
        let mut out = [0.0; 32];
        decode(GgmlType::Mxfp4, &[&[e][..], &[0x27; 16]].concat(), &mut out);
        (out[0], out[16])
    };
    assert_eq!(largest(0), (6.0 * 2f32.powi(-127), 2f32.powi(-127)));
    assert_eq!(largest(1), (6.0 * 2f32.powi(-126), 2f32.powi(-126)));
    assert_eq!(largest(2), (6.0 * 2f32.powi(-125), 2f32.powi(-125)));
    assert_eq!(largest(255), (f32::INFINITY, f32::INFINITY));
}
