//! Both precisions against f64, and against themselves in other company.

use super::super::super::Tier;
use super::super::super::element::{Bf16, Element, FloatType};
use super::super::super::pairs::kept;
use super::*;
use crate::pool::Pool;
use crate::testing::Random;

/// Relative to the sum of absolute products: some hundred roundings of 2^-24, and bf16 products
/// below 2^-126 that count as zero.
const TOLERANCE: f64 = 1e-5;

/// Both precisions, if this processor has tile registers.
fn ways() -> Vec<(Amx, Precision)> {
    match Tier::detect() {
        Tier::Amx(proof) => [Precision::Bf16, Precision::Bf16x2].map(|p| (proof, p)).to_vec(),
        _ => Vec::new(),
    }
}

fn random(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.signed()).collect()
}

/// Weights from an odd address on.
fn stored(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; 1 + 2 * values.len()];
    Bf16::store(values, &mut bytes[1..]);
    bytes
}

fn matrix(bytes: &[u8], inputs: usize) -> Matrix<'_> {
    Matrix { bytes: &bytes[1..], float: FloatType::Bf16, inputs }
}

fn multiply(
    (proof, precision): (Amx, Precision),
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    float_matmul(proof, precision, weight, bias, &Inputs::new(x))
}

#[test]
fn agrees_with_f64() {
    let mut numbers = Random::new(41);
    let cases = ways().into_iter().flat_map(|way| (0..40).map(move |case| (case, way)));
    for (case, way) in cases {
        let inputs = [1, 2, 31, 32, 33, 64, 1023, 1024, 1025, 2100][numbers.below(10)];
        let outputs = 1 + numbers.below(300);
        let rows = 1 + numbers.below(70);
        let weights = stored(&random(&mut numbers, inputs * outputs));
        let x = random(&mut numbers, rows * inputs);
        let bias = random(&mut numbers, outputs);
        let y = multiply(way, matrix(&weights, inputs), Some(&bias), &x);
        let weights = FloatType::Bf16.widen(&weights[1..]);
        for (at, &found) in y.iter().enumerate() {
            let (row, output) = (at / outputs, at % outputs);
            let mut exact = f64::from(bias[output]);
            let mut scale = exact.abs();
            for i in 0..inputs {
                let weight = f64::from(weights[output * inputs + i]);
                let product = kept(x[row * inputs + i], way.1) * weight;
                exact += product;
                scale += product.abs();
            }
            assert!(
                (f64::from(found) - exact).abs() <= TOLERANCE * scale,
                "case {case} of {way:?}, {rows} × {inputs} × {outputs} at {row},{output}: {found} {exact}"
            );
        }
    }
}

#[test]
fn rows_and_threads_do_not_change_a_bit() {
    let mut numbers = Random::new(42);
    // The last one has more activations than stay near: several strips to a task, several passes.
    let shapes = [(1100, 301, 70), (48, 20, 600), (1100, 301, 600)];
    let cases = ways().into_iter().flat_map(|way| shapes.map(|shape| (way, shape)));
    for (way, (inputs, outputs, rows)) in cases {
        let weights = stored(&random(&mut numbers, inputs * outputs));
        let weights = matrix(&weights, inputs);
        let x = random(&mut numbers, rows * inputs);
        let together = multiply(way, weights, None, &x);
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads).unwrap();
            let again = pool.install(|| multiply(way, weights, None, &x));
            assert_eq!(together, again, "{threads} threads");
        }
        for (row, several) in [(0, 1), (1, 1), (rows - 1, 1), (5, 20), (20, 33)] {
            let some = &x[row * inputs..][..several * inputs];
            let some = multiply(way, weights, None, some);
            assert_eq!(together[row * outputs..][..some.len()], some, "{several} from {row}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut numbers = Random::new(43);
    let (inputs, outputs) = (40, 17);
    let weights = stored(&random(&mut numbers, inputs * outputs));
    let mut x = random(&mut numbers, 3 * inputs);
    x[inputs + 3] = f32::INFINITY;
    for way in ways() {
        let y = multiply(way, matrix(&weights, inputs), None, &x);
        assert!(y[outputs..2 * outputs].iter().all(|y| !y.is_finite()));
        assert!(y[..outputs].iter().chain(&y[2 * outputs..]).all(|y| y.is_finite()));
    }
}
