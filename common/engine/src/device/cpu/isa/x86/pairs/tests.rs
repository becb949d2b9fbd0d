//! Every kernel that multiplies bf16 weights with rounded activations, against f64 and against itself
//! in other company.

use cake_checkpoint::FloatType;

use crate::device::cpu::element::{Bf16, Element};
use crate::device::cpu::gemm::case::RowClass;
use crate::device::cpu::gemm::table::choose;
use crate::device::cpu::gemm::weight::{Matrix, Weight};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::pool::Pool;
use crate::options::{Numerics, Precision};
use crate::testing::{Random, assert_product, product, widened};

/// Relative to the sum of absolute products: some thousand roundings of 2^-24, most of which cancel,
/// and bf16 products below 2^-126 that count as zero.
const TOLERANCE: f64 = 1e-5;

/// A tier that multiplies pairs, with the precision of rows of prompts, or with generated rows.
type Way = (Tier, Option<Precision>);

/// All that this processor has.
fn ways() -> Vec<Way> {
    let tiers = Tier::all().into_iter();
    let tiers = tiers.filter(|tier| tier.avx512().and_then(|avx512| avx512.bf16()).is_some());
    let all = [Some(Precision::Bf16), Some(Precision::Bf16x2), None];
    let ways = tiers.flat_map(|tier| all.map(|precision| (tier, precision)));
    ways.filter(|way| way.1.is_some() || matches!(way.0, Tier::Amx(_))).collect()
}

fn multiply(way: Way, weight: Matrix<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let weight = Weight::Float(weight);
    let rows = way.1.map_or(RowClass::Decode, RowClass::Prefill);
    product(choose(way.0, weight.kind(), rows, Numerics::Fast), way.0, weight, bias, x)
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
    Matrix { bytes: &bytes[1..], float: FloatType::BF16, inputs }
}

/// What is left of an activation in this precision.
fn kept(x: f32, precision: Option<Precision>) -> f64 {
    let high = half::bf16::from_f32(x);
    let low = half::bf16::from_f32(x - high.to_f32());
    match precision {
        Some(Precision::Bf16 | Precision::Bf16Both) => high.to_f64(),
        Some(Precision::Bf16x2) | None => high.to_f64() + low.to_f64(),
    }
}

#[test]
fn agrees_with_f64_on_rounded_activations() {
    let mut numbers = Random::new(41);
    let cases = ways().into_iter().flat_map(|way| (0..40).map(move |case| (case, way)));
    for (case, way) in cases {
        const INPUTS: [usize; 13] = [1, 2, 31, 32, 33, 64, 511, 512, 513, 1023, 1024, 1100, 2100];
        let inputs = INPUTS[numbers.below(INPUTS.len())];
        let outputs = 1 + numbers.below(300);
        let rows = 1 + numbers.below(70);
        let weights = stored(&random(&mut numbers, inputs * outputs));
        let x = random(&mut numbers, rows * inputs);
        let bias = random(&mut numbers, outputs);
        let y = multiply(way, matrix(&weights, inputs), Some(&bias), &x);
        let weights = widened(FloatType::BF16, &weights[1..]);
        let x: Vec<f64> = x.iter().map(|&x| kept(x, way.1)).collect();
        let what = format!("case {case} of {way:?}, {rows} × {inputs} × {outputs}");
        assert_product(&y, &x, (&weights, &bias), TOLERANCE, &what);
    }
}

#[test]
fn rows_parts_and_threads_do_not_change_a_bit() {
    let mut numbers = Random::new(42);
    // With few threads the last ones have outputs, and rows, that are not all multiplied together.
    let shapes =
        [(1037, 131, 150), (1100, 301, 70), (48, 20, 600), (1100, 301, 600), (300, 1037, 70)];
    let cases = ways().into_iter().flat_map(|way| shapes.map(|shape| (way, shape)));
    for (way, (inputs, outputs, rows)) in cases {
        let weights = stored(&random(&mut numbers, inputs * outputs));
        let weights = matrix(&weights, inputs);
        let x = random(&mut numbers, rows * inputs);
        let together = multiply(way, weights, None, &x);
        for threads in [1, 2, 3, 5, 12] {
            let pool = Pool::new(threads).unwrap();
            let again = pool.install(|| multiply(way, weights, None, &x));
            assert!(together == again, "{way:?}, {threads} threads");
        }
        for (row, several) in [(0, 1), (1, 1), (rows - 1, 1), (5, 20), (20, 33)] {
            let some = &x[row * inputs..][..several * inputs];
            let some = multiply(way, weights, None, some);
            let same = together[row * outputs..][..some.len()] == some;
            assert!(same, "{way:?}, {several} from {row}");
        }
        if rows == 150 {
            for chunk in [1, 2, 7, 16, 64] {
                let product = |x: &[f32]| multiply(way, weights, None, x);
                let cut: Vec<f32> = x.chunks(chunk * inputs).flat_map(product).collect();
                assert!(cut == together, "{way:?}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (inputs, outputs) = (70, 20);
    let weights = stored(&vec![0.5; inputs * outputs]);
    let mut x = vec![1.0; 4 * inputs];
    x[inputs + 9] = f32::NAN;
    x[2 * inputs + 69] = f32::INFINITY;
    for way in ways() {
        let y = multiply(way, matrix(&weights, inputs), None, &x);
        let row = |row: usize| &y[row * outputs..(row + 1) * outputs];
        assert!(row(0).iter().chain(row(3)).all(|&y| y == 35.0), "{way:?}");
        assert!(row(1).iter().all(|y| y.is_nan()));
        match way.1 {
            Some(Precision::Bf16 | Precision::Bf16Both) => {
                assert!(row(2).iter().all(|&y| y == f32::INFINITY))
            }
            // Infinity less infinity is no number.
            Some(Precision::Bf16x2) | None => assert!(row(2).iter().all(|y| y.is_nan())),
        }
    }
}

#[test]
fn what_a_thread_computed_before_does_not_matter() {
    let mut numbers = Random::new(46);
    let (large, small) =
        (stored(&random(&mut numbers, 300 * 700)), stored(&random(&mut numbers, 37 * 90)));
    let infinite = vec![f32::INFINITY; 70 * 700];
    for rows in [3, 21] {
        let x = random(&mut numbers, rows * 90);
        for way in ways() {
            let on_a_new_thread = |dirty: bool| {
                std::thread::scope(|scope| {
                    let run = scope.spawn(|| {
                        if dirty {
                            multiply(way, matrix(&large, 700), None, &infinite);
                        }
                        multiply(way, matrix(&small, 90), None, &x)
                    });
                    run.join().unwrap()
                })
            };
            assert_eq!(on_a_new_thread(true), on_a_new_thread(false), "{way:?} {rows} rows");
        }
    }
}
