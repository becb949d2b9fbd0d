//! Every kernel of the portable tier on shapes so small that Miri runs all of them within minutes: it finds reads of
//! uninitialized memory, accesses out of bounds and data races. `tests/miri.sh` runs these.

use cake_checkpoint::{Activation, FloatType, KvDtype, RotaryPairs};

use super::activation::gated;
use super::attention::{Attend, KvView, attend};
use super::element::{Bf16, Element, F16, F32};
use super::elementwise::{above, add, rms_norm, rotate};
use super::gemm::affine::exact::dequantize;
use super::gemm::case::RowClass;
use super::gemm::float::Float;
use super::gemm::fp8::{Fp8, Fp8Matrix, ScaleType};
use super::gemm::table::choose;
use super::gemm::weight::{Acts, AffineMatrix, Bits, MAX_GROUP, Matrix, Weight};
use super::isa::simd::Portable;
use super::isa::tier::Tier;
use super::pool::Pool;
use crate::batch::AttendRow;
use crate::device::Attending;
use crate::options::Numerics;
use crate::rope::Rotation;
use crate::testing::{Random, product, widened};

const TIER: Tier = Tier::Portable(Portable);

/// What `work` gives without a pool and on two threads, which is the same.
fn both<R: PartialEq + std::fmt::Debug>(work: impl Fn() -> R) -> R {
    let alone = work();
    assert_eq!(Pool::new(2).unwrap().install(work), alone);
    alone
}

fn numbers(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.signed()).collect()
}

/// `x · weightᵀ + bias` by its definition.
fn by_definition(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let inputs = weight.len() / bias.len();
    let rows = x.chunks_exact(inputs);
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    rows.flat_map(|x| {
        let outputs = weight.chunks_exact(inputs).zip(bias);
        outputs.map(|(w, bias)| (dot(x, w) + f64::from(*bias)) as f32).collect::<Vec<_>>()
    })
    .collect()
}

fn assert_near(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= tolerance, "{index}: {found}, expected {expected}");
    }
}

#[test]
fn what_happens_between_products() {
    let mut random = Random::new(1);
    let (x, y) = (numbers(&mut random, 3 * 37), numbers(&mut random, 3 * 37));
    let weight = numbers(&mut random, 37);
    let normed = both(|| rms_norm(TIER, &x, &weight, 1e-5));
    for (x, normed) in x.chunks_exact(37).zip(normed.chunks_exact(37)) {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / 37.0;
        let expected: Vec<f32> =
            x.iter().zip(&weight).map(|(x, w)| x * w / (mean + 1e-5).sqrt()).collect();
        assert_near(normed, &expected, 1e-4);
    }
    let silu: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x / (1.0 + (-x).exp()) * y).collect();
    assert_near(&both(|| gated(TIER, Activation::Silu, &x, &y)), &silu, 1e-5);
    let inner = |x: f32| 0.797_884_6 * (x + 0.044_715 * x.powi(3));
    let gelu = |x: f32, y: f32| 0.5 * x * (1.0 + inner(x).tanh()) * y;
    let gelu: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| gelu(x, y)).collect();
    assert_near(&both(|| gated(TIER, Activation::GeluTanh, &x, &y)), &gelu, 1e-5);
    let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert_eq!(both(|| add(&x, &y)), sum);
    let positive: Vec<f32> = x.iter().map(|x| x.max(0.0)).collect();
    let centred: Vec<f32> = x.iter().flat_map(|x| [*x, -x]).collect(); // Pairs whose means are zero.
    let bounded = both(|| above(TIER, &centred, 2, 0.0));
    assert_eq!(bounded.iter().step_by(2).copied().collect::<Vec<_>>(), positive);
    for pairs in [RotaryPairs::Halves, RotaryPairs::Neighbours] {
        let (cos, sin) = (vec![1.0; 3 * 4], vec![0.0; 3 * 4]);
        let rotation = Rotation { cos, sin, half: 4, pairs };
        assert_eq!(both(|| rotate(&x, &rotation, (1, 37))), x, "by no angle");
    }
}

#[test]
fn products_with_plain_weights() {
    let mut random = Random::new(2);
    let (inputs, outputs, rows) = (37, 5, 3);
    let (x, bias) = (numbers(&mut random, rows * inputs), numbers(&mut random, outputs));
    let values = numbers(&mut random, outputs * inputs);
    for float in [FloatType::F32, FloatType::F16, FloatType::BF16] {
        let mut bytes = vec![0; values.len() * float.bytes()];
        match float {
            FloatType::F32 => F32::store(&values, &mut bytes),
            FloatType::F16 => F16::store(&values, &mut bytes),
            FloatType::BF16 => Bf16::store(&values, &mut bytes),
        }
        let expected = by_definition(&x, &widened(float, &bytes), &bias);
        let matrix = Matrix { bytes: &bytes, float, inputs };
        let y = both(|| product(&Float, TIER, Weight::Float(matrix), Some(&bias), &x));
        assert_near(&y, &expected, 1e-4);
    }
}

#[test]
fn products_with_packed_weights() {
    let mut random = Random::new(3);
    let (bytes, words) = (Acts::Bytes, Acts::Words);
    for (bits, acts, group) in [
        (Bits::Four, bytes, 32),
        (Bits::Six, words, 32),
        (Bits::Eight, words, 64),
        (Bits::Eight, words, MAX_GROUP),
    ] {
        for rows in [1, 5] {
            let (inputs, outputs) = (MAX_GROUP, 3);
            let x = numbers(&mut random, rows * inputs);
            let bias = numbers(&mut random, outputs);
            let below = if bits == Bits::Six { 64 } else { 256 };
            let codes: Vec<u8> = (0..outputs * inputs / bits.per_byte())
                .map(|_| random.below(below) as u8)
                .collect();
            let mut params = || {
                let values = numbers(&mut random, outputs * inputs / group);
                let mut bytes = vec![0; values.len() * 4];
                F32::store(&values, &mut bytes);
                bytes
            };
            let (scales, biases) = (params(), params());
            let (scales, biases, params) = (&*scales, &*biases, FloatType::F32);
            let weight =
                AffineMatrix { codes: &codes, scales, biases, params, bits, acts, group, inputs };
            let expected = by_definition(&x, &dequantize(TIER, weight), &bias);
            let largest = expected.iter().fold(1.0f32, |largest, y| largest.max(y.abs()));
            for numerics in [Numerics::Exact, Numerics::Fast] {
                let weight = Weight::Affine(weight);
                let kernel = choose(TIER, weight.kind(), RowClass::Decode, numerics);
                let y = product(kernel, TIER, weight, Some(&bias), &x);
                // Activations are quantized to 16 bits, or 8, and a dot product has as many terms as there are inputs.
                let steps = if acts == bytes { 120.0 } else { 32_000.0 };
                assert_near(&y, &expected, largest * inputs as f32 / steps);
            }
        }
    }
}

#[test]
fn products_with_numbers_of_a_byte() {
    // Less than is read at a time, and more, where outputs that are computed together share their scales.
    for (inputs, block, rows) in [(128 + 32 + 5, 2, &[1, 2, 5][..]), (512 + 32 + 5, 4, &[1, 3])] {
        numbers_of_a_byte(inputs, block, rows);
    }
}

/// FP8 weights (E4M3) with a scale for each block of `block` outputs and 128 inputs.
fn numbers_of_a_byte(inputs: usize, block: usize, rows: &[usize]) {
    let mut random = Random::new(5);
    let outputs = 5usize;
    let byte = |random: &mut Random| (random.below(127) + 128 * random.below(2)) as u8;
    let numbers_of_a_byte: Vec<u8> = (0..outputs * inputs).map(|_| byte(&mut random)).collect();
    let blocks = inputs.div_ceil(128);
    let scales = 0..outputs.div_ceil(block) * blocks;
    let scales: Vec<u8> = scales.map(|_| 120 + random.below(8) as u8).collect();
    let (scale, shared) = (ScaleType::E8m0, [block, 128]);
    let weight =
        Fp8Matrix { numbers: &numbers_of_a_byte, scales: &scales, scale, shared, first: 0, inputs };
    let defined: Vec<f32> = (0..outputs * inputs)
        .map(|at| {
            let byte = usize::from(numbers_of_a_byte[at]);
            let scale = scales[at / inputs / block * blocks + at % inputs / 128];
            let (number, sign) = (byte & 127, if byte < 128 { 1.0 } else { -1.0 });
            let number = match (number >> 3, (number & 7) as f32) {
                (0, fraction) => fraction / 512.0,
                (exponent, fraction) => (1.0 + fraction / 8.0) * 2f32.powi(exponent as i32 - 7),
            };
            sign * number * 2f32.powi(i32::from(scale) - 127)
        })
        .collect();
    for &rows in rows {
        let (x, bias) = (numbers(&mut random, rows * inputs), numbers(&mut random, outputs));
        let expected = by_definition(&x, &defined, &bias);
        let y = both(|| product(&Fp8, TIER, Weight::Fp8(weight), Some(&bias), &x));
        assert_near(&y, &expected, 1e-1);
    }
}

#[test]
fn attention_over_blocks() {
    let mut random = Random::new(4);
    let (heads, kv_heads, head_dim, block_positions) = (4, 2, 6, 4);
    let blocks = [3u32, 0, 2];
    let elements = 4 * kv_heads * block_positions * head_dim;
    let mut cache = || {
        let values = numbers(&mut random, elements);
        let mut bytes = vec![0; elements * 4];
        F32::store(&values, &mut bytes);
        (values, bytes)
    };
    let ((keys, key_bytes), (values, value_bytes)) = (cache(), cache());
    let kv = KvView {
        keys: &key_bytes,
        values: &value_bytes,
        kv: KvDtype::F32,
        block_positions,
        kv_heads,
        head_dim,
    };
    let rows: Vec<_> =
        (8..11).map(|position| AttendRow { position, blocks: &blocks, is_known: false }).collect();
    let q = numbers(&mut random, rows.len() * heads * head_dim);
    let spec = Attending {
        heads,
        kv_heads,
        head_dim,
        keys_alone: false,
        scale: 0.5,
        softcap: None,
        has_sinks: true,
        window: None,
        segment: None,
    };
    let sinks = numbers(&mut random, heads);
    let view = Attend { kv, rows: &rows, spec: &spec, sinks: Some(&sinks) };
    let found = both(|| attend(TIER, &view, &q));
    let mut expected = Vec::new();
    for (row, q) in rows.iter().zip(q.chunks_exact(heads * head_dim)) {
        for (head, q) in q.chunks_exact(head_dim).enumerate() {
            let kv_head = head / (heads / kv_heads);
            let at = |position| kv.offset(&blocks, position, kv_head) / 4;
            let weights = (0..=row.position).map(|position| {
                let key = &keys[at(position)..][..head_dim];
                (0.5 * q.iter().zip(key).map(|(q, k)| q * k).sum::<f32>()).exp()
            });
            let weights: Vec<f32> = weights.collect();
            let total = sinks[head].exp() + weights.iter().sum::<f32>();
            for element in 0..head_dim {
                let sum: f32 = (0..=row.position)
                    .map(|position| weights[position] * values[at(position) + element])
                    .sum();
                expected.push(sum / total);
            }
        }
    }
    assert_near(&found, &expected, 1e-5);
}
