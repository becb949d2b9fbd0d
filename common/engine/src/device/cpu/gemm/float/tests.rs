//! The kernel against f64, and its bits.

use super::*;
use crate::device::cpu::element::{Bf16, Element, F16, F32};
use crate::device::cpu::pool::Pool;
use crate::testing::{Random, assert_product, digest, product, widened};

/// Relative to the sum of absolute products: 2^-24 per rounding, some hundred in a row at most.
const TOLERANCE: f64 = 1e-5;

/// `outputs × inputs` random weights from an odd address on, with their values.
fn weights(random: &mut Random, float: FloatType, elements: usize) -> (Vec<u8>, Vec<f32>) {
    let values: Vec<f32> = (0..elements).map(|_| random.signed()).collect();
    let mut bytes = vec![0; 1 + elements * float.bytes()];
    match float {
        FloatType::F32 => F32::store(&values, &mut bytes[1..]),
        FloatType::F16 => F16::store(&values, &mut bytes[1..]),
        FloatType::BF16 => Bf16::store(&values, &mut bytes[1..]),
    }
    let stored = widened(float, &bytes[1..]);
    (bytes, stored)
}

fn multiply(tier: Tier, weight: Matrix<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    product(&Float, tier, Weight::Float(weight), bias, x)
}

#[test]
fn agrees_with_f64_for_odd_shapes_types_and_addresses() {
    let mut random = Random::new(11);
    for case in 0..60 {
        let inputs = 1 + random.below(130);
        let outputs = 1 + random.below(40);
        let rows = 1 + random.below(30);
        for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
            let (bytes, stored) = weights(&mut random, float, inputs * outputs);
            let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
            let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let bias: Vec<f32> = (0..outputs).map(|_| random.signed()).collect();
            let matrix = Matrix { bytes: &bytes[1..], float, inputs };
            for tier in Tier::all() {
                let y = multiply(tier, matrix, Some(&bias), &x);
                let what = format!("case {case} {float:?} {tier:?}");
                assert_product(&y, &exact, (&stored, &bias), TOLERANCE, &what);
            }
        }
    }
}

#[test]
fn rows_and_threads_do_not_change_a_bit() {
    let mut random = Random::new(12);
    let (inputs, outputs) = (203, 301);
    let (bytes, _) = weights(&mut random, FloatType::BF16, inputs * outputs);
    let matrix = Matrix { bytes: &bytes[1..], float: FloatType::BF16, inputs };
    for (tier, rows) in Tier::all().into_iter().flat_map(|tier| [(tier, 7), (tier, 27)]) {
        let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
        let together = multiply(tier, matrix, None, &x);
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            let again = pool.install(|| multiply(tier, matrix, None, &x));
            assert_eq!(together, again, "{tier:?} {threads} threads");
        }
        for row in 0..rows {
            let alone = multiply(tier, matrix, None, &x[row * inputs..][..inputs]);
            assert_eq!(together[row * outputs..][..outputs], alone, "{tier:?} row {row}");
        }
    }
}

#[test]
fn fused_tiers_agree_to_the_bit() {
    let mut random = Random::new(13);
    let (inputs, outputs) = (150, 33);
    let floats = [
        (FloatType::F32, 0x79bd_e566_6909_2938),
        (FloatType::F16, 0x4739_d8e2_ddd2_904e),
        (FloatType::BF16, 0x9ab6_fccc_dfee_56ce),
    ];
    for (float, expected) in floats {
        let (bytes, _) = weights(&mut random, float, inputs * outputs);
        let matrix = Matrix { bytes: &bytes[1..], float, inputs };
        let x: Vec<f32> = (0..5 * inputs).map(|_| random.signed()).collect();
        let product = |tier| multiply(tier, matrix, None, &x);
        for tier in Tier::fused() {
            let found = digest(&product(tier));
            assert_eq!(found, expected, "{float:?} {tier:?}: {found:#018x}");
        }
    }
}

/// Several blocks of inputs, of outputs and of rows, none of them whole, one of which ends in half a vector.
#[test]
fn rows_that_pass_over_several_blocks_are_those_alone() {
    let mut random = Random::new(14);
    let (inputs, outputs, rows) = (2 * 1024 + 52, 2 * OUTPUTS + 7, 197);
    for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
        let (bytes, _) = weights(&mut random, float, inputs * outputs);
        let matrix = Matrix { bytes: &bytes[1..], float, inputs };
        let bias: Vec<f32> = (0..outputs).map(|_| random.signed()).collect();
        let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
        for tier in Tier::all() {
            let together = multiply(tier, matrix, Some(&bias), &x);
            for row in [0, 1, 2, 100, 191, 192, 193, 195, 196] {
                let alone = multiply(tier, matrix, Some(&bias), &x[row * inputs..][..inputs]);
                let found = &together[row * outputs..][..outputs];
                assert_eq!(found, alone, "{float:?} {tier:?} row {row}");
            }
        }
    }
}
