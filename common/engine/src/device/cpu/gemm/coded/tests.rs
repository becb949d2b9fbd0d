//! Every tier, encoding and shape against f64, and what must not change a bit.

use std::sync::Arc;

use cake_checkpoint::{Affine, Dtype, Encoding, GgmlType, MappedMatrix, MappedTensor, Memory};

use super::{UNPACKED, Unpacked};
use crate::device::cpu::gemm::affine::plain::Words;
use crate::device::cpu::gemm::case::{Case, RowClass};
use crate::device::cpu::gemm::table::{choose, entry};
use crate::device::cpu::gemm::weight::{Acts, Bits};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::operand::Operand;
use crate::device::cpu::pool::Pool;
use crate::matrix::StoredMatrix;
use crate::options::{Numerics, Precision};
use crate::testing::{Random, half_ends, prepared_product, product, rounded};

/// What all kernels are compared with.
const PLAIN: Unpacked<Words> = Unpacked { kernel: Words, outputs: UNPACKED };
/// Relative to the sum of absolute products: 2^-24 per rounding, some hundred in a row at most.
const TOLERANCE: f64 = 1e-5;

/// Every encoding whose matrices are neither plain numbers nor affine.
fn encodings() -> impl Iterator<Item = Encoding> {
    let is_read = |encoding: &Encoding| match encoding {
        Encoding::Float(_) => true,
        Encoding::Affine(format) => Bits::of_affine(format.bits()).is_some(),
        _ => false,
    };
    Encoding::all().into_iter().filter(move |encoding| !is_read(encoding))
}

/// A random matrix whose numbers are finite.
fn random_matrix(random: &mut Random, encoding: Encoding, shape: [usize; 2]) -> Operand {
    let specs = encoding.parts(shape.map(|dimension| dimension as u64)).unwrap();
    let part = |spec: cake_checkpoint::PartSpec| {
        let dtype = spec.types[0];
        let len = dtype.tensor_bytes(&spec.shape).unwrap() as usize;
        let mut memory = Memory::zeroed(len).unwrap();
        match dtype {
            Dtype::F32 => {
                let numbers = memory.as_chunks_mut().0;
                numbers.iter_mut().for_each(|to| *to = random.signed().to_le_bytes());
            }
            Dtype::F8E8M0 => memory.iter_mut().for_each(|to| *to = 120 + random.below(16) as u8),
            Dtype::F8E4M3 => memory.iter_mut().for_each(|to| *to = random.below(127) as u8),
            _ if encoding == Encoding::Ggml(GgmlType::Mxfp4) => {
                let size = GgmlType::Mxfp4.block_bytes();
                memory.iter_mut().enumerate().for_each(|(at, to)| {
                    let exponent = at % size == 0;
                    *to = if exponent { 120 + random.below(16) } else { random.below(256) } as u8;
                });
            }
            _ => memory.iter_mut().enumerate().for_each(|(at, to)| {
                let mask = if ends_a_half(encoding, dtype, at) { 0xbb } else { 0xff };
                *to = random.below(256) as u8 & mask;
            }),
        }
        MappedTensor::from_memory(memory, dtype, spec.shape).unwrap()
    };
    let parts = specs.into_iter().map(part).collect();
    let matrix = StoredMatrix::new("it", MappedMatrix { encoding, parts }, shape[1]).unwrap();
    Operand::new(Arc::new(matrix))
}

/// Whether this byte of a part may be the upper one of a number of half precision, which some bits make an infinity.
fn ends_a_half(encoding: Encoding, dtype: Dtype, at: usize) -> bool {
    let Encoding::Ggml(kind) = encoding else {
        let has_none = matches!(dtype, Dtype::U8 | Dtype::U32 | Dtype::I32);
        return at % 2 == 1 && (!has_none || matches!(encoding, Encoding::Apr(_)));
    };
    half_ends(kind).contains(&(at % kind.block_bytes()))
}

fn signed(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.signed()).collect()
}

fn multiply(
    tier: Tier,
    numerics: Numerics,
    matrix: &Operand,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    let weight = matrix.weight(0..matrix.matrix().rows());
    let (kind, prefill) = (weight.kind(), RowClass::Prefill(Precision::Bf16x2));
    let multiply = |rows| product(choose(tier, kind, rows, numerics), tier, weight, bias, x);
    let name = |rows| entry(&Case { isa: tier.isa(), weight: kind, rows, numerics }).name;
    let found = multiply(RowClass::Decode);
    // Rows of a prompt give the same bits, by whichever kernel.
    assert!(
        name(RowClass::Decode) == name(prefill) || found == multiply(prefill),
        "{kind:?} {tier:?} {} rows",
        x.len() / matrix.matrix().columns()
    );
    found
}

#[test]
fn agrees_with_f64_for_odd_shapes_and_all_encodings() {
    let mut random = Random::new(31);
    for case in 0..3 {
        for encoding in encodings() {
            let shape = [1 + random.below(90), 256 * (1 + random.below(3))];
            let rows = [1, 3, 1 + random.below(20)][case];
            let [outputs, inputs] = shape;
            let matrix = random_matrix(&mut random, encoding, shape);
            let matrix = matrix.beside(
                [Precision::Bf16, Precision::Bf16x2, Precision::Bf16Both][case],
                Numerics::Int8,
            );
            let is_coarse = case != 1 && encoding.largest_code() < 64;
            let acts = if is_coarse { Acts::Bytes } else { Acts::Words };
            let weights = matrix.matrix().decode(0..outputs);
            let (bias, x) = (signed(&mut random, outputs), signed(&mut random, rows * inputs));
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let seen: Vec<f64> = match (numerics, encoding.unpacked_group(inputs)) {
                    (Numerics::Fast, Some(group)) => rounded(&x, group, acts),
                    _ => x.iter().map(|&x| f64::from(x)).collect(),
                };
                let results: Vec<Vec<f32>> = Tier::all()
                    .into_iter()
                    .map(|tier| multiply(tier, numerics, &matrix, Some(&bias), &x))
                    .collect();
                for at in 0..rows * outputs {
                    let (row, output) = (at / outputs, at % outputs);
                    let (x, weights) =
                        (&seen[row * inputs..][..inputs], &weights[output * inputs..][..inputs]);
                    let products = || x.iter().zip(weights).map(|(x, w)| x * f64::from(*w));
                    let exact = f64::from(bias[output]) + products().sum::<f64>();
                    // Codes are unsigned: a product may be of the size of the largest weight of its group.
                    let largest = weights.iter().fold(0f32, |most, w| most.max(w.abs()));
                    let size = x.iter().map(|x| x.abs()).sum::<f64>() * f64::from(largest) + 1.0;
                    for (result, tier) in results.iter().zip(Tier::all()) {
                        let off = (f64::from(result[at]) - exact).abs();
                        assert!(
                            off <= TOLERANCE * size,
                            "{encoding} {numerics:?} {tier:?} {shape:?} {rows} rows: {} beside {exact}",
                            result[at]
                        );
                    }
                    let (first, others) = results.split_last().unwrap();
                    let fused = others.iter().skip(1); // The portable tier rounds twice.
                    for (other, tier) in fused.zip(Tier::all().into_iter().skip(1)) {
                        assert_eq!(first[at].to_bits(), other[at].to_bits(), "{encoding} {tier:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_computes_what_plain_code_does_with_unpacked_codes() {
    let mut random = Random::new(33);
    let unpacked = |encoding: &Encoding, inputs| encoding.unpacked_group(inputs).is_some();
    for encoding in encodings().filter(|encoding| unpacked(encoding, 512)) {
        // Rows of few inputs have a last vector, and last scales, that are not whole.
        let least =
            [16, 32, 64, 128].into_iter().find(|&columns| encoding.parts([1, columns]).is_some());
        let least = least.unwrap_or(256) as usize;
        let shapes = [(1, 256, 1), (37, 768, 2), (21, 512, 3), (77, 1280, 13)];
        let narrow = [(9, least, 1), (37, 3 * least, 3), (21, 45 * least, 4), (35, 71 * least, 7)];
        let all = shapes.into_iter().chain(narrow);
        for (outputs, inputs, rows) in all.filter(|shape| unpacked(&encoding, shape.1)) {
            let shape = [outputs, inputs];
            let mut matrix = random_matrix(&mut random, encoding, shape);
            let (bias, x) = (signed(&mut random, outputs), signed(&mut random, rows * shape[1]));
            for precision in [Precision::Bf16, Precision::Bf16x2] {
                matrix = matrix.beside(precision, Numerics::Int8);
                for tier in Tier::fused() {
                    let found = multiply(tier, Numerics::Fast, &matrix, Some(&bias), &x);
                    let weight = matrix.weight(0..outputs);
                    let plain = product(&PLAIN, tier, weight, Some(&bias), &x);
                    assert!(
                        found == plain,
                        "{encoding} {precision:?} {tier:?} {shape:?} {rows} rows"
                    );
                }
            }
        }
    }
}

#[test]
fn neither_rows_beside_nor_threads_nor_a_part_of_a_matrix_change_a_bit() {
    let mut random = Random::new(32);
    for encoding in encodings() {
        let shape = [131, 512];
        let matrix =
            random_matrix(&mut random, encoding, shape).beside(Precision::Bf16, Numerics::Int8);
        let x = signed(&mut random, 37 * shape[1]);
        for tier in Tier::all() {
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let all = multiply(tier, numerics, &matrix, None, &x);
                let pool = Pool::new(3).unwrap();
                let threads = pool.install(|| multiply(tier, numerics, &matrix, None, &x));
                assert!(all == threads, "{encoding} {tier:?}");
                for (row, x) in x.chunks_exact(shape[1]).enumerate().step_by(12) {
                    let alone = multiply(tier, numerics, &matrix, None, x);
                    assert!(alone == all[row * shape[0]..][..shape[0]], "{encoding} {tier:?}");
                }
                let weight = matrix.weight(40..90);
                let kernel = choose(tier, weight.kind(), RowClass::Decode, numerics);
                let part = product(kernel, tier, weight, None, &x[..shape[1]]);
                assert!(part == all[40..90], "{encoding} {tier:?}");
            }
        }
    }
}

#[test]
fn activations_in_one_form_serve_every_kernel_that_takes_it() {
    let (mut random, inputs) = (Random::new(35), 512);
    let is_coded = |it: &Encoding| !matches!(it, Encoding::Float(_) | Encoding::Fp8(_));
    for precision in [Precision::Bf16, Precision::Bf16x2] {
        let matrices: Vec<Operand> = Encoding::all()
            .into_iter()
            .filter(is_coded)
            .map(|it| random_matrix(&mut random, it, [5, inputs]).beside(precision, Numerics::Int8))
            .collect();
        for tier in Tier::fused() {
            let kernel = |matrix: &Operand| {
                let kind = matrix.weight(0..5).kind();
                let kernel = choose(tier, kind, RowClass::Decode, Numerics::Fast);
                (kernel, kernel.form(kind))
            };
            for rows in 1..=5 {
                let x = signed(&mut random, rows * inputs);
                for first in &matrices {
                    let (by, form) = kernel(first);
                    let ready = by.prepare(tier, &first.weight(0..5), &x);
                    for (second, (kernel, _)) in matrices
                        .iter()
                        .map(|it| (it, kernel(it)))
                        .filter(|(_, (_, other))| *other == form)
                    {
                        let weight = second.weight(0..5);
                        let alone = product(kernel, tier, weight, None, &x);
                        let beside = prepared_product(kernel, tier, weight, None, &ready);
                        assert!(alone == beside, "{form:?} {tier:?} {rows} rows");
                    }
                }
            }
        }
    }
}

/// Numbers of threads, and of rows that they share: every size of a tile, also of a last one, and parts of many rows.
const TOGETHER: [(usize, &[usize]); 2] =
    [(1, &[4, 5, 6, 8, 11, 12, 13, 14, 17, 20, 23, 24, 111, 122]), (5, &[12, 100, 110, 133])];

#[test]
fn tiles_of_every_size_compute_what_plain_code_does() {
    let mut random = Random::new(34);
    let blocks = [GgmlType::Q4K, GgmlType::Q6K, GgmlType::Q8_0, GgmlType::Iq4Xs];
    let streams = [(3, 128), (6, 64)].map(|(bits, group)| Affine::new(bits, group).unwrap());
    let apart = encodings().filter(|it| matches!(it, Encoding::Fp4(_)));
    let behind = streams.map(Encoding::Affine).into_iter();
    for encoding in blocks.map(Encoding::Ggml).into_iter().chain(behind).chain(apart) {
        let shape = [37, 768];
        let x = signed(&mut random, 133 * shape[1]);
        for precision in [Precision::Bf16, Precision::Bf16x2] {
            let matrix =
                random_matrix(&mut random, encoding, shape).beside(precision, Numerics::Int8);
            for tier in Tier::fused() {
                let weight = matrix.weight(0..shape[0]);
                let plain = product(&PLAIN, tier, weight, None, &x);
                for (threads, rows) in TOGETHER {
                    let pool = Pool::new(threads).unwrap();
                    for &rows in rows {
                        let x = &x[..rows * shape[1]];
                        let found =
                            pool.install(|| multiply(tier, Numerics::Fast, &matrix, None, x));
                        let same = found == plain[..rows * shape[0]];
                        assert!(same, "{encoding} {precision:?} {tier:?} {rows} rows");
                    }
                }
            }
        }
    }
}
