//! Where weights come from: stored in bf16, or as codes, dequantized and rounded to bf16 on their way.

use std::arch::x86_64::*;
use std::ops::Range;

use cake_checkpoint::FloatType;

use super::shape::{STEP, STRIP_LINES};
use crate::device::cpu::gemm::weight::{AffineMatrix, Bits, Weight};
use crate::device::cpu::isa::prefetch::prefetch;
use crate::device::cpu::isa::x86::pairs::round_pairs;
use crate::device::cpu::isa::x86::tiles::LINE;
use crate::device::cpu::isa::x86::{Line, read_bytes};

/// Some steps of every output, as bf16; of packed weights, those of whole groups. A weight of theirs is
/// `mul_add(scale, code, bias)`, rounded to nearest, ties to even.
pub(super) fn part<'a>(weight: &Weight<'a>, steps: &Range<usize>) -> Part<'a> {
    let inputs = steps.start * STEP..(steps.end * STEP).min(weight.inputs());
    match weight {
        Weight::Float(matrix) => {
            let bytes = matrix.float.bytes();
            let (at, len) = (inputs.start * bytes, inputs.len() * bytes);
            Part::Bf16(Columns { bytes: matrix.bytes, stride: matrix.row_bytes(), at, len })
        }
        Weight::Affine(matrix) => {
            let AffineMatrix { bits, group, params, .. } = *matrix;
            assert!(inputs.start.is_multiple_of(group) && inputs.end.is_multiple_of(group));
            let (at, len) = (inputs.start / bits.per_byte(), inputs.len() / bits.per_byte());
            let codes = Columns { bytes: matrix.codes, stride: matrix.row_bytes(), at, len };
            let groups = inputs.len() / group;
            let (at, len) = (inputs.start / group * params.bytes(), groups * params.bytes());
            let stride = matrix.param_bytes();
            let scales = Columns { bytes: matrix.scales, stride, at, len };
            let biases = Columns { bytes: matrix.biases, stride, at, len };
            let group_steps = group / STEP;
            Part::Affine(Affine { codes, scales, biases, params, bits, groups, group_steps })
        }
        Weight::Fp8(_) | Weight::Coded(_) => {
            unreachable!("the table gives what is not rounded to other kernels")
        }
    }
}

/// Bytes of every row of a matrix: those from `at` on.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    bytes: &'a [u8],
    /// From row to row.
    stride: usize,
    at: usize,
    len: usize,
}

impl<'a> Columns<'a> {
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride + self.at..][..self.len]
    }

    #[inline(always)]
    fn prefetch(&self, row: usize) {
        let first = self.bytes.as_ptr().wrapping_add(row * self.stride + self.at);
        for line in (0..self.len).step_by(LINE) {
            prefetch(first.wrapping_add(line));
        }
    }
}

/// Some steps of every output of a matrix, ready to be written row by row: what takes a division is
/// divided once.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Bf16(Columns<'a>),
    Affine(Affine<'a>),
}

/// Whole groups of packed weights.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    codes: Columns<'a>,
    scales: Columns<'a>,
    biases: Columns<'a>,
    /// The type of scales and biases.
    params: FloatType,
    bits: Bits,
    groups: usize,
    /// Steps of each of them.
    group_steps: usize,
}

impl Part<'_> {
    /// Prefetches an output.
    #[inline(always)]
    pub(super) fn prefetch(&self, output: usize) {
        match self {
            Part::Bf16(columns) => columns.prefetch(output),
            Part::Affine(Affine { codes, scales, biases, .. }) => {
                [codes, scales, biases].into_iter().for_each(|columns| columns.prefetch(output));
            }
        }
    }

    /// Writes an output, each step to the first of `STRIP_LINES` lines. Zeros follow the last input of
    /// a row in bf16; packed rows end with a step.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    #[inline]
    pub(super) fn write(&self, output: usize, lines: &mut [Line]) {
        match self {
            Part::Bf16(columns) => {
                let lines = lines.iter_mut().step_by(STRIP_LINES);
                for (line, bytes) in lines.zip(columns.row(output).chunks(LINE)) {
                    line.write(read_bytes(bytes));
                }
            }
            Part::Affine(affine) => affine.write(output, lines),
        }
    }
}

impl Affine<'_> {
    /// As [`Part::write`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    #[inline]
    fn write(&self, output: usize, lines: &mut [Line]) {
        let codes = self.codes.row(output);
        let scales = widen(self.params, self.scales.row(output));
        let biases = widen(self.params, self.biases.row(output));
        for group in 0..self.groups {
            let lane = _mm512_set1_epi32(group as i32);
            let scale = _mm512_permutexvar_ps(lane, scales);
            let bias = _mm512_permutexvar_ps(lane, biases);
            let steps = group * self.group_steps..(group + 1) * self.group_steps;
            match self.bits {
                Bits::Six | Bits::Eight => {
                    let codes = &codes.as_chunks::<STEP>().0[steps.clone()];
                    for (codes, step) in codes.iter().zip(steps) {
                        lines[step * STRIP_LINES].write(eights(codes, scale, bias));
                    }
                }
                Bits::Four => {
                    let codes = &codes.as_chunks::<{ STEP / 2 }>().0[steps.clone()];
                    let table = sixteen(scale, bias);
                    for (codes, step) in codes.iter().zip(steps) {
                        lines[step * STRIP_LINES].write(fours(codes, table));
                    }
                }
            }
        }
    }
}

/// Dequantizes codes of a byte each, to pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn eights(codes: &[u8; STEP], scale: __m512, bias: __m512) -> __m512i {
    let half = |first: usize| {
        // SAFETY: sixteen bytes of the array, from its first or its middle on.
        let codes = unsafe { _mm_loadu_si128(codes[first..].as_ptr().cast()) };
        _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), bias)
    };
    round_pairs(half(0), half(STEP / 2))
}

/// Dequantizes all codes of four bits: a table of their weights in bf16, twice.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn sixteen(scale: __m512, bias: __m512) -> __m512i {
    let codes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let weights = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(codes), bias);
    round_pairs(weights, weights)
}

/// Dequantizes codes of four bits, two in a byte, by `table`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn fours(codes: &[u8; STEP / 2], table: __m512i) -> __m512i {
    // SAFETY: the array is a vector long.
    let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
    // Five bits of each word choose: those of a code and one that chooses between equals.
    let bytes = _mm512_cvtepu8_epi32(codes);
    let words = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
    _mm512_permutexvar_epi16(words, table)
}

/// At most 16 scales or biases as f32, with zeros behind the last.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
#[inline]
fn widen(float: FloatType, bytes: &[u8]) -> __m512 {
    let bits = read_bytes(bytes);
    match float {
        FloatType::F32 => _mm512_castsi512_ps(bits),
        FloatType::F16 => _mm512_cvtph_ps(_mm512_castsi512_si256(bits)),
        FloatType::BF16 => {
            let bits = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::prompt::PromptTiles;
    use super::*;
    use crate::device::cpu::element::{Bf16, Element, F16, F32, number};
    use crate::device::cpu::gemm::weight::Matrix;
    use crate::device::cpu::isa::tier::Tier;
    use crate::device::cpu::isa::x86::Amx;
    use crate::device::cpu::pool::Pool;
    use crate::options::Precision;
    use crate::testing::{Random, product};

    /// So many small numbers of either sign, from an odd address on.
    fn params(random: &mut Random, float: FloatType, count: usize) -> Vec<u8> {
        let values: Vec<f32> = (0..count).map(|_| random.signed()).collect();
        let mut bytes = vec![0; 1 + count * float.bytes()];
        match float {
            FloatType::F32 => F32::store(&values, &mut bytes[1..]),
            FloatType::F16 => F16::store(&values, &mut bytes[1..]),
            FloatType::BF16 => Bf16::store(&values, &mut bytes[1..]),
        }
        bytes
    }

    /// The weights of `matrix` in bf16, by the definition.
    fn rounded(matrix: &AffineMatrix<'_>) -> Vec<u8> {
        let count = matrix.outputs() * matrix.inputs;
        let values: Vec<f32> = (0..count)
            .map(|at| {
                let code = match matrix.bits {
                    Bits::Four => (matrix.codes[at / 2] >> (4 * (at % 2))) & 0xf,
                    Bits::Six | Bits::Eight => matrix.codes[at],
                };
                let scale = number(matrix.params, matrix.scales, at / matrix.group);
                let bias = number(matrix.params, matrix.biases, at / matrix.group);
                scale.mul_add(f32::from(code), bias)
            })
            .collect();
        let mut bytes = vec![0; 2 * count];
        Bf16::store(&values, &mut bytes);
        bytes
    }

    #[test]
    fn packed_weights_are_multiplied_as_their_neighbours_in_bf16() {
        let Some(proof) = Amx::detect() else {
            crate::testing::not_shown("AMX kernels", "this processor has no tile registers");
            return;
        };
        let mut random = Random::new(61);
        let floats = [FloatType::F32, FloatType::F16, FloatType::BF16];
        let kinds = [Bits::Four, Bits::Eight].into_iter().flat_map(|bits| {
            [32, 64, 128]
                .into_iter()
                .flat_map(move |group| floats.map(|float| (bits, group, float)))
        });
        for (case, (bits, group, float)) in kinds.cycle().take(72).enumerate() {
            let inputs = group * (1 + random.below(1300 / group));
            let (outputs, rows) = (1 + random.below(300), 1 + random.below(70));
            let codes = 1 + outputs * inputs / bits.per_byte();
            let codes: Vec<u8> = (0..codes).map(|_| random.below(256) as u8).collect();
            let [scales, biases] =
                [(), ()].map(|()| params(&mut random, float, outputs * inputs / group));
            let (codes, scales, biases) = (&codes[1..], &scales[1..], &biases[1..]);
            let acts = crate::device::cpu::gemm::weight::Acts::Words;
            let packed =
                AffineMatrix { codes, scales, biases, params: float, bits, acts, group, inputs };
            let stored = rounded(&packed);
            let stored = Matrix { bytes: &stored, float: FloatType::BF16, inputs };
            let x: Vec<f32> = (0..rows * inputs).map(|_| random.signed()).collect();
            let bias: Vec<f32> = (0..outputs).map(|_| random.signed()).collect();
            let kernel = PromptTiles { precision: Precision::Bf16 };
            let multiply = |weight| product(&kernel, Tier::Amx(proof), weight, Some(&bias), &x);
            let expected = multiply(Weight::Float(stored));
            let what = format!("case {case}: {bits:?} {group} {float:?} {rows}×{inputs}×{outputs}");
            for threads in [1, 3] {
                let pool = Pool::new(threads).unwrap();
                let found = pool.install(|| multiply(Weight::Affine(packed)));
                assert!(found == expected, "{what}, {threads} threads");
            }
        }
    }
}
