//! The kernel beside the one that decodes by the encoding's definition, whose bits it gives, and its bits.

use std::ops::Range;
use std::sync::Arc;

use cake_checkpoint::{
    Dtype, Encoding, FloatType, Fp8 as Format, MappedMatrix, MappedTensor, Memory, RowsAt,
    Unpacked, e8m0,
};

use super::*;
use crate::device::cpu::element::{Bf16, Element, F16, F32};
use crate::device::cpu::gemm::coded::Decoded;
use crate::device::cpu::gemm::weight::{Acts, Coded, Decode};
use crate::device::cpu::operand::Operand;
use crate::device::cpu::pool::Pool;
use crate::matrix::StoredMatrix;
use crate::testing::{Random, digest, product};

const SCALES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8E8M0];

/// A matrix that is decoded by its encoding's definition.
struct Stored {
    format: Format,
    numbers: Vec<u8>,
    /// From an odd address on.
    scales: Vec<u8>,
    dtype: Dtype,
    inputs: usize,
}

impl Stored {
    /// One of these numbers, whose scales are made by `scale`.
    fn new(
        format: Format,
        dtype: Dtype,
        (numbers, inputs): (Vec<u8>, usize),
        mut scale: impl FnMut() -> f32,
    ) -> Stored {
        let [rows, width] = format.shared();
        let rows = ((numbers.len() / inputs) as u64).div_ceil(rows);
        let count = rows * (inputs as u64).div_ceil(width);
        let mut scales = vec![0];
        for _ in 0..count {
            let mut bytes = [0; 4];
            let len = match dtype {
                Dtype::F16 => {
                    F16::store(&[scale()], &mut bytes[..2]);
                    2
                }
                Dtype::BF16 => {
                    Bf16::store(&[scale()], &mut bytes[..2]);
                    2
                }
                Dtype::F8E8M0 => {
                    bytes[0] = (scale().to_bits() >> 23) as u8;
                    1
                }
                _ => {
                    F32::store(&[scale()], &mut bytes);
                    4
                }
            };
            scales.extend(&bytes[..len]);
        }
        Stored { format, numbers, scales, dtype, inputs }
    }

    fn outputs(&self) -> usize {
        self.numbers.len() / self.inputs
    }

    /// Some outputs as the kernel takes them.
    fn weight(&self, outputs: Range<usize>) -> Weight<'_> {
        Weight::Fp8(Fp8Matrix {
            numbers: &self.numbers[outputs.start * self.inputs..outputs.end * self.inputs],
            scales: &self.scales[1..],
            scale: ScaleType::of(self.dtype),
            shared: self.format.shared().map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
            first: outputs.start,
            inputs: self.inputs,
        })
    }

    /// The same as the kernel takes them that decodes.
    fn coded(&self, outputs: Range<usize>) -> Weight<'_> {
        Weight::Coded(Coded {
            is_narrow: false,
            acts: Acts::Words,
            matrix: self,
            first: outputs.start,
            outputs: outputs.len(),
            inputs: self.inputs,
            bytes: &self.numbers,
            group: None,
            in_place: None,
            scales: &[],
            biases: &[],
            float: FloatType::F32,
            global: None,
        })
    }
}

impl Decode for Stored {
    fn decode(&self, rows: Range<usize>, out: &mut [f32]) {
        let numbers = &self.numbers[rows.start * self.inputs..rows.end * self.inputs];
        let scales = &self.scales[1..];
        let scales = match self.format.shared()[0] {
            1 => {
                let row = scales.len() / self.outputs();
                &scales[rows.start * row..rows.end * row]
            }
            _ => scales,
        };
        let parts = [(Dtype::F8E4M3, numbers), (self.dtype, scales)];
        let at = RowsAt { first: rows.start, columns: self.inputs };
        Encoding::Fp8(self.format).decode_rows(at, &parts, out);
    }

    fn unpack(&self, _: Range<usize>, _: Unpacked<'_>) {
        unreachable!("numbers of a byte are no codes");
    }
}

fn formats() -> Vec<Format> {
    let blocks = [(128, 128), (1, 32), (1, 128), (64, 64), (32, 256)];
    let blocks = blocks.into_iter().map(|(rows, width)| Format::block(rows, width).unwrap());
    [Format::Matrix, Format::Row].into_iter().chain(blocks).collect()
}

/// Numbers of which none is no number.
fn numbers(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count).map(|_| (random.below(127) | random.below(2) << 7) as u8).collect()
}

fn signed(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.signed()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    // Of what is no number, processors keep different bits.
    values.iter().map(|value| if value.is_nan() { 1 } else { value.to_bits() }).collect()
}

#[test]
fn gives_the_bits_of_what_is_decoded_for_odd_shapes_formats_and_scales() {
    let mut random = Random::new(41);
    for case in 0..6 {
        let shape = [1 + random.below(140), 1 + random.below(1200)];
        for (format, dtype) in formats().into_iter().flat_map(|it| SCALES.map(|dtype| (it, dtype)))
        {
            let [outputs, inputs] = shape;
            let numbers = numbers(&mut random, outputs * inputs);
            let scale = || 0.01 * (1.5 + random.signed());
            let stored = Stored::new(format, dtype, (numbers, inputs), scale);
            let bias = signed(&mut random, outputs);
            let range = random.below(outputs)..outputs;
            for rows in [1, 2, 3, 4, 1 + random.below(30)] {
                let x = signed(&mut random, rows * inputs);
                for tier in Tier::all() {
                    let bias = Some(&bias[range.clone()]);
                    let found = product(&Fp8, tier, stored.weight(range.clone()), bias, &x);
                    let decoded = product(&Decoded, tier, stored.coded(range.clone()), bias, &x);
                    let what = format!("case {case} {format} {dtype} {tier:?} {shape:?} {rows}");
                    assert!(found == decoded, "{what}");
                }
            }
        }
    }
}

#[test]
fn scales_at_the_ends_and_what_is_no_number_survive() {
    let mut random = Random::new(42);
    let (outputs, inputs) = (6, 300);
    let extremes = [f32::MIN_POSITIVE / 64.0, 2f32.powi(118), f32::MAX / 256.0];
    let others = [0.0, f32::INFINITY, f32::NAN, -0.5];
    for (index, scale) in extremes.into_iter().chain(others).enumerate() {
        for format in formats() {
            let mut numbers = numbers(&mut random, outputs * inputs);
            if index % 2 == 1 {
                numbers[2 * inputs + 131] = 0x7f;
                numbers[4 * inputs + 299] = 0xff;
            }
            let stored = Stored::new(format, Dtype::F32, (numbers, inputs), || scale);
            for rows in [1, 2, 3, 5, 13] {
                let x: Vec<f32> =
                    signed(&mut random, rows * inputs).iter().map(|x| x / 256.0).collect();
                for tier in Tier::all() {
                    let found = product(&Fp8, tier, stored.weight(0..outputs), None, &x);
                    let decoded = product(&Decoded, tier, stored.coded(0..outputs), None, &x);
                    assert_eq!(bits(&found), bits(&decoded), "{scale} {format} {tier:?} {rows}");
                    let none = found.iter().filter(|value| value.is_nan()).count();
                    assert!(index % 2 == 0 || none >= 2 * rows, "{scale} {format} {tier:?}");
                }
            }
        }
    }
}

#[test]
fn a_matrix_with_a_scale_that_is_too_large_is_decoded() {
    for (scale, is_taken) in [(f32::MAX / 256.0, true), (2f32.powi(120), false), (f32::NAN, true)] {
        let tensor = |dtype, shape: Vec<u64>, bytes: &[u8]| {
            let mut memory = Memory::zeroed(bytes.len()).unwrap();
            memory.copy_from_slice(bytes);
            MappedTensor::from_memory(memory, dtype, shape).unwrap()
        };
        let numbers = tensor(Dtype::F8E4M3, vec![2, 3], &[0x38, 0xb0, 0x3c, 0x01, 0x00, 0x20]);
        let parts = vec![numbers, tensor(Dtype::F32, vec![1], &scale.to_le_bytes())];
        let encoding = Encoding::Fp8(Format::Matrix);
        let matrix = StoredMatrix::new("it", MappedMatrix { encoding, parts }, 3).unwrap();
        let kernel = Operand::new(Arc::new(matrix)).weight(0..2).kind();
        assert_eq!(kernel == WeightKind::Fp8, is_taken, "{scale}");
    }
    assert!(ScaleType::E8m0.takes(&[0, 127, 246, 255]) && !ScaleType::E8m0.takes(&[127, 247]));
}

#[test]
fn rows_and_threads_do_not_change_a_bit() {
    let mut random = Random::new(43);
    let (inputs, outputs) = (1195, 301);
    let numbers = numbers(&mut random, outputs * inputs);
    let format = Format::block(128, 128).unwrap();
    let scale = || random.signed();
    let stored = Stored::new(format, Dtype::BF16, (numbers, inputs), scale);
    let weight = stored.weight(0..outputs);
    for (tier, rows) in
        Tier::all().into_iter().flat_map(|tier| [2, 3, 7, 27].map(|rows| (tier, rows)))
    {
        let x = signed(&mut random, rows * inputs);
        let together = product(&Fp8, tier, weight, None, &x);
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            let again = pool.install(|| product(&Fp8, tier, weight, None, &x));
            assert_eq!(together, again, "{tier:?} {threads} threads");
        }
        for row in 0..rows {
            let alone = product(&Fp8, tier, weight, None, &x[row * inputs..][..inputs]);
            assert_eq!(together[row * outputs..][..outputs], alone, "{tier:?} row {row}");
        }
    }
}

#[test]
fn fused_tiers_agree_to_the_bit() {
    let mut random = Random::new(44);
    let (inputs, outputs) = (150, 33);
    let numbers = numbers(&mut random, outputs * inputs);
    let format = Format::block(1, 32).unwrap();
    let scale = || e8m0(118 + random.below(8) as u8);
    let stored = Stored::new(format, Dtype::F8E8M0, (numbers, inputs), scale);
    let x = signed(&mut random, 3 * inputs);
    for tier in Tier::fused() {
        let found = digest(&product(&Fp8, tier, stored.weight(0..outputs), None, &x));
        assert_eq!(found, 0xd5ee_1128_8eee_a35e, "{tier:?}: {found:#018x}");
    }
}
