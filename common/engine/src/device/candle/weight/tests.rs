//! Products with weights in every encoding, however they are held, against what codecs decode.

use cake_checkpoint::{Dtype, GgmlType, MappedMatrix, MappedTensor};

use super::*;
use crate::options::{Numerics, Precision};
use crate::testing::{Random, half_ends};

/// Of the sum of magnitudes: some hundred roundings of 2^-24 each.
const TOLERANCE: f64 = 1e-5;
/// The largest of a group in steps of its codes: half of one is rounded away, and a scale in half precision is off by a part
/// in 2,048, a quarter of 127 steps and less.
const STEPS: f64 = 127.0;
/// Numbers of activations that share a scale, at most.
const GROUP: usize = 256;

/// A matrix of random bits, where those are numbers, with a byte before it, so that it lies at an odd address.
fn matrix(random: &mut Random, encoding: Encoding, [rows, inputs]: [usize; 2]) -> StoredMatrix {
    let shape = [rows as u64, inputs as u64];
    let specs = encoding.parts(shape).unwrap();
    let part = |spec: cake_checkpoint::PartSpec| {
        let dtype = spec.types[0];
        let bytes = dtype.tensor_bytes(&spec.shape).unwrap() as usize;
        // Small numbers whatever they are read as.
        let byte = |at: usize| match (encoding, dtype) {
            (_, Dtype::F32) => [0, random.below(256), 0x80, 0x3c][at % 4] as u8,
            (_, Dtype::BF16) => [random.below(256), 0x3c][at % 2] as u8,
            (_, Dtype::F16) => [random.below(256), 0x28][at % 2] as u8,
            (_, Dtype::F8E4M3) => random.below(127) as u8,
            (_, Dtype::F8E8M0) => 120,
            (Encoding::Ggml(kind), _) => block_byte(random, kind, at),
            (Encoding::Apr(_), _) if at % 18 < 2 => [random.below(256), 0x28][at % 2] as u8,
            _ => random.below(256) as u8,
        };
        let bytes = (0..bytes).map(byte).collect();
        MappedTensor::from_vec(bytes, dtype, spec.shape)
    };
    let parts = specs.into_iter().map(part).collect();
    StoredMatrix::new("it", MappedMatrix { encoding, parts }, inputs).unwrap()
}

/// A byte of a block: numbers of half precision are below an eighth.
fn block_byte(random: &mut Random, kind: GgmlType, at: usize) -> u8 {
    let at = at % kind.block_bytes();
    match half_ends(kind).contains(&at) {
        true => 0x2c,
        false if kind == GgmlType::Mxfp4 && at == 0 => 120,
        false => random.below(256) as u8,
    }
}

fn linear(matrix: &Arc<StoredMatrix>, rows: Range<usize>, numerics: Numerics) -> StoredLinear {
    let bias = (0..rows.len()).map(|output| output as f32 / 8.0).collect();
    let (matrix, bias, precision) = (matrix.clone(), Some(bias), Precision::Bf16);
    StoredLinear { matrix, rows, bias, numerics, precision, tallied: None }
}

/// What differs from `x · weightᵀ + bias` by more than may be: of each product a part of its magnitude, and where `rounds` a
/// step of its group's codes for each weight.
fn off(weight: &Weight, all: &StoredMatrix, rows: Range<usize>, x: &[f32], rounds: bool) -> f64 {
    let inputs = all.columns();
    let of_x = Tensor::from_vec(x.to_vec(), (x.len() / inputs, inputs), &Device::Cpu).unwrap();
    let found: Vec<f32> = weight.product(&of_x).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let weights = all.decode(rows.clone());
    let mut found = found.into_iter();
    let mut most = 0.0_f64;
    for x in x.chunks(inputs) {
        for (output, weights) in weights.chunks(inputs).enumerate() {
            let mut exact = output as f64 / 8.0;
            let mut may = TOLERANCE * exact;
            for (x, weights) in x.chunks(GROUP).zip(weights.chunks(GROUP)) {
                let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                for (x, weight) in x.iter().zip(weights) {
                    let product = f64::from(*x) * f64::from(*weight);
                    let step = f64::from(largest) * f64::from(weight.abs()) / STEPS;
                    exact += product;
                    may += TOLERANCE * product.abs() + if rounds { step } else { 0.0 };
                }
            }
            let off = (f64::from(found.next().unwrap()) - exact).abs();
            most = most.max(off / may);
        }
    }
    assert!(found.next().is_none());
    most
}

/// The bytes that a weight holds beside what is mapped.
fn held(weight: &Weight) -> usize {
    match &weight.lies {
        Lies::Mapped(..) | Lies::MappedBlocks(..) => 0,
        Lies::Numbers(all) => all.elem_count() * all.dtype().size_in_bytes(),
        Lies::Blocks(strips) => strips.iter().map(QTensor::storage_size_in_bytes).sum(),
        Lies::Product(QMatMul::QTensor(all)) => all.storage_size_in_bytes(),
        Lies::Product(_) => usize::MAX, // Widened.
    }
}

#[test]
fn products_are_those_of_what_codecs_decode() {
    let mut random = Random::new(3);
    for encoding in Encoding::all() {
        let shape = [70, 512];
        let all = Arc::new(matrix(&mut random, encoding, shape));
        for numerics in Numerics::ALL {
            for (rows, count) in [(0..70, 1), (3..68, 5), (64..70, 3)] {
                let x: Vec<f32> = (0..count * shape[1]).map(|_| random.signed()).collect();
                let linear = || linear(&all, rows.clone(), numerics);
                let mapped = Weight::mapped(linear(), &Device::Cpu).unwrap();
                let brought = Weight::brought(linear(), &Device::Cpu).unwrap();
                let knows = Kind::of(encoding).is_some();
                let rounds = knows && numerics.rounds();
                for (weight, where_) in [(mapped, "mapped"), (brought, "brought")] {
                    let off = off(&weight, &all, rows.clone(), &x, rounds);
                    let what = format!("{encoding} {numerics}, {rows:?} {where_}: {off}");
                    assert!(off <= 1.0, "{what}");
                    // Fast products round.
                    assert!(!rounds || off > 1e-3, "{what}");
                    assert!(held(&weight) <= all.stored(rows.clone()).len(), "{what}");
                }
            }
        }
    }
}

#[test]
fn strips_say_what_the_whole_says() {
    // Several strips, the last of them shorter, of a matrix that is wide or long.
    for shape in [[2500, 64], [700, 2048]] {
        let mut random = Random::new(5);
        let x: Vec<f32> = (0..2 * shape[1]).map(|_| random.signed()).collect();
        for encoding in [Encoding::Ggml(GgmlType::Q8_0), Encoding::Float(FloatType::BF16)] {
            let all = Arc::new(matrix(&mut random, encoding, shape));
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let linear = || linear(&all, 0..shape[0], numerics);
                let mapped = Weight::mapped(linear(), &Device::Cpu).unwrap();
                assert!(mapped.strips().count() > 1);
                let rounds = Kind::of(encoding).is_some() && numerics.rounds();
                for weight in [mapped, Weight::brought(linear(), &Device::Cpu).unwrap()] {
                    let off = off(&weight, &all, 0..shape[0], &x, rounds);
                    assert!(off <= 1.0, "{shape:?} {encoding} {numerics}: {off}");
                }
            }
        }
    }
}

#[test]
fn blocks_that_are_mapped_are_multiplied_to_the_bit_however_many_rows_travel() {
    let (mut random, inputs) = (Random::new(7), 512);
    let x: Vec<f32> = (0..9 * inputs).map(|_| random.signed()).collect();
    for encoding in Encoding::all().into_iter().filter(|it| Kind::of(*it).is_some()) {
        let all = matrix(&mut random, encoding, [37, inputs]);
        let kind = Kind::of(encoding).unwrap();
        let bytes = all.stored(0..37);
        let product = |bytes: &[u8], x: &[f32]| blocks::product(kind, bytes, x, inputs).unwrap();
        let whole = product(bytes, &x);
        let apart: Vec<f32> = x.chunks(inputs).flat_map(|x| product(bytes, x)).collect();
        assert!(whole == apart, "{encoding}");
        // At an address of either kind.
        for start in [0, 1] {
            let moved = [&vec![0; start][..], bytes].concat();
            assert!(product(&moved[start..], &x) == whole, "{encoding}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (mut random, inputs) = (Random::new(9), 256);
    let all = Arc::new(matrix(&mut random, Encoding::Ggml(GgmlType::Q4K), [5, inputs]));
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x: Vec<f32> = (0..3 * inputs).map(|_| random.signed()).collect();
        x[inputs + 7] = odd;
        let x = Tensor::from_vec(x, (3, inputs), &Device::Cpu).unwrap();
        for hold in [Weight::mapped, Weight::brought] {
            let weight = hold(linear(&all, 0..5, Numerics::Fast), &Device::Cpu).unwrap();
            let rows: Vec<Vec<f32>> = weight.product(&x).unwrap().to_vec2().unwrap();
            let finite = rows.iter().map(|row| row.iter().all(|it| it.is_finite()));
            assert_eq!(finite.collect::<Vec<_>>(), [true, false, true]);
            assert!(rows[1].iter().all(|it| it.is_nan()));
        }
    }
}

#[test]
fn no_rows_and_rows_of_odd_blocks_are_multiplied() {
    let mut random = Random::new(11);
    for encoding in [GgmlType::Q5_0, GgmlType::Q4_1, GgmlType::Q8_0].map(Encoding::Ggml) {
        let all = Arc::new(matrix(&mut random, encoding, [7, 96]));
        let weight = Weight::mapped(linear(&all, 0..7, Numerics::Fast), &Device::Cpu).unwrap();
        let x: Vec<f32> = (0..2 * 96).map(|_| random.signed()).collect();
        assert!(off(&weight, &all, 0..7, &x, false) <= 1.0, "{encoding}: these are decoded");
        let none = Tensor::zeros((0, 96), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(weight.product(&none).unwrap().dims(), [0, 7]);
    }
}
