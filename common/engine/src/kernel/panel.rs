//! Products of prompt rows with bf16 weights, on processors that multiply bf16 pairs.
//!
//! Activations are rounded to bf16 (to nearest, ties to even). Every element of the result is one
//! chain over the inputs: `sum = dpbf16(sum, w[2i..2i + 2], x[2i..2i + 2])` for `i` in order from a
//! sum of zero, an odd last input paired with zero, then `+ bias`. Nothing else enters it: neither
//! other rows nor tiles, blocks or threads.
//!
//! Weights are transposed, some outputs and some inputs at a time, into a panel that lies in the
//! second-level cache while all rows pass over it.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use rayon::prelude::*;

use super::PARALLEL_WORK;
use super::matmul::Matrix;
use super::simd::LANES;
use super::target::Target;
use super::x86::{Avx512Bf16, transposed};

/// Vectors of outputs in a panel.
const VECTORS: usize = 4;
/// Outputs of a panel.
const OUTPUTS: usize = VECTORS * LANES;
/// Rows computed together: with `VECTORS` they fill 24 of the 32 registers with sums.
const ROWS: usize = 6;
/// Pairs of inputs in a panel: 64 KiB of weights.
const BLOCK: usize = 256;
/// Least rows that are worth transposing a panel once more for, so that another thread has work.
const PART_ROWS: usize = 48;

/// One pair of inputs of all outputs of a panel; the earlier input is in the lower half.
type Column = [u32; OUTPUTS];

thread_local! {
    /// The panel that a thread works on.
    static PANEL: RefCell<Vec<Column>> = const { RefCell::new(Vec::new()) };
}

/// `x · weightᵀ + bias` with `x` rounded to bf16: `x` is `[rows, inputs]`, `weight` is bf16, the
/// result `[rows, outputs]`, all row-major.
///
/// Runs on the current rayon pool. `bias` has one element per output.
pub(crate) fn panel_matmul_bf16(
    proof: Avx512Bf16,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    x: &[f32],
) -> Vec<f32> {
    let outputs = weight.outputs();
    let rows = x.len() / weight.inputs;
    assert_eq!(x.len(), rows * weight.inputs, "whole rows");
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias each");
    let mut y = vec![0.0; rows * outputs];
    let parallel = rows * outputs * weight.inputs >= PARALLEL_WORK;
    let x = Activations::round(proof, x, weight.inputs, parallel);
    let panels = outputs.div_ceil(OUTPUTS);
    let parts = row_parts(rows, panels);
    let part_rows = rows.div_ceil(parts).next_multiple_of(ROWS);
    let target = Target::new(&mut y, outputs);
    let run = |task: usize| {
        let (panel, part) = (task % panels, task / panels);
        let first = panel * OUTPUTS;
        let task = Task {
            weight,
            bias,
            x: &x,
            outputs: first..(first + OUTPUTS).min(outputs),
            rows: (part * part_rows).min(rows)..((part + 1) * part_rows).min(rows),
            target,
        };
        PANEL.with_borrow_mut(|panel| {
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { task.run(panel) }
        });
    };
    if parallel {
        (0..panels * parts).into_par_iter().with_max_len(1).for_each(run);
    } else {
        (0..panels * parts).for_each(run);
    }
    y
}

/// How many parts to cut the rows into, so that few panels still employ all threads.
fn row_parts(rows: usize, panels: usize) -> usize {
    let wanted = (2 * rayon::current_num_threads()).div_ceil(panels.max(1));
    wanted.min(rows / PART_ROWS).max(1)
}

/// Rows of activations as pairs of bf16, each row padded with zeros to whole vectors and a vector
/// more, so that rows of a power of two do not compete for the same places of the cache.
struct Activations {
    pairs: Vec<u32>,
    stride: usize,
}

impl Activations {
    fn round(proof: Avx512Bf16, x: &[f32], inputs: usize, parallel: bool) -> Activations {
        let stride = inputs.div_ceil(2).next_multiple_of(LANES) + LANES;
        let mut pairs = vec![0; x.len() / inputs * stride];
        let round = |(pairs, x): (&mut [u32], &[f32])| {
            let _: Avx512Bf16 = proof;
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { round_row(x, pairs) }
        };
        if parallel {
            pairs.par_chunks_exact_mut(stride).zip(x.par_chunks_exact(inputs)).for_each(round);
        } else {
            pairs.chunks_exact_mut(stride).zip(x.chunks_exact(inputs)).for_each(round);
        }
        Activations { pairs, stride }
    }
}

/// Rounds `x` into `pairs`, which have room for whole vectors of them.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn round_row(x: &[f32], pairs: &mut [u32]) {
    let pairs = pairs.as_chunks_mut::<LANES>().0;
    for (x, pairs) in x.chunks(2 * LANES).zip(pairs) {
        let mask = u32::MAX >> (2 * LANES - x.len());
        let (low, high) = (mask as u16, (mask >> LANES) as u16);
        // SAFETY: masked loads touch the elements of `x` alone; the store fills an array.
        unsafe {
            let low = _mm512_maskz_loadu_ps(low, x.as_ptr());
            let high = _mm512_maskz_loadu_ps(high, x.as_ptr().wrapping_add(LANES));
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(pairs.as_mut_ptr().cast(), both);
        }
    }
}

/// Some rows with the outputs of one panel.
struct Task<'a> {
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    outputs: Range<usize>,
    rows: Range<usize>,
    target: Target<'a>,
}

impl Task<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn run(&self, panel: &mut Vec<Column>) {
        panel.resize(BLOCK, [0; OUTPUTS]);
        let pairs = self.weight.inputs.div_ceil(2);
        let mut first = 0;
        while first < pairs {
            let block = first..(first + BLOCK).min(pairs);
            self.fill(&block, panel);
            let panel = &panel[..block.len()];
            let mut row = self.rows.start;
            while row < self.rows.end {
                row += match self.rows.end - row {
                    1 => self.tile::<1>(panel, row, &block),
                    2 => self.tile::<2>(panel, row, &block),
                    3 => self.tile::<3>(panel, row, &block),
                    4 => self.tile::<4>(panel, row, &block),
                    5 => self.tile::<5>(panel, row, &block),
                    _ => self.tile::<ROWS>(panel, row, &block),
                };
            }
            first = block.end;
        }
    }

    /// Transposes `block` of the weights' pairs into the panel; outputs past the end are zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn fill(&self, block: &Range<usize>, panel: &mut [Column]) {
        let row_bytes = self.weight.inputs * 2;
        let bytes = block.start * 4..(block.end * 4).min(row_bytes);
        let weights = &self.weight.bytes[self.outputs.start * row_bytes..];
        for vector in 0..VECTORS {
            let mut rows: [&[u8]; LANES] = [&[]; LANES];
            let present = self.outputs.len().saturating_sub(vector * LANES).min(LANES);
            for (lane, row) in rows[..present].iter_mut().enumerate() {
                let output = vector * LANES + lane;
                *row = &weights[output * row_bytes..][bytes.clone()];
            }
            for (index, columns) in panel[..block.len()].chunks_mut(LANES).enumerate() {
                let square = rows.map(|row| {
                    let rest = row.get(index * 64..).unwrap_or(&[]);
                    let mask = if rest.len() >= 64 { !0 } else { (1u64 << rest.len()) - 1 };
                    // SAFETY: the masked load touches the bytes of `rest` alone.
                    unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) }
                });
                // SAFETY: this function has the instructions.
                let square = unsafe { transposed(square) };
                for (column, pairs) in columns.iter_mut().zip(square) {
                    let to = column[vector * LANES..][..LANES].as_mut_ptr();
                    // SAFETY: the slice has one vector.
                    unsafe { _mm512_storeu_si512(to.cast(), pairs) }
                }
            }
        }
    }

    /// Continues the sums of `R` rows from `row` on with one panel; returns `R`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    #[inline]
    fn tile<const R: usize>(&self, panel: &[Column], row: usize, block: &Range<usize>) -> usize {
        let mut x: [&[u32]; R] = [&[]; R];
        for (r, x) in x.iter_mut().enumerate() {
            *x = &self.x.pairs[(row + r) * self.x.stride + block.start..][..panel.len()];
        }
        let masks = std::array::from_fn::<u16, VECTORS, _>(|vector| {
            let present = self.outputs.len().saturating_sub(vector * LANES).min(LANES);
            ((1u32 << present) - 1) as u16
        });
        let (first, len) = (self.outputs.start, self.outputs.len());
        // SAFETY (of every `part`): `panel_matmul_bf16` gives each of its tasks other elements, and
        // this one holds one part at a time.
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; R];
        if block.start > 0 {
            for r in 0..R {
                let y = unsafe { self.target.part(row + r, first, len) };
                for v in 0..VECTORS {
                    let from = y.as_ptr().wrapping_add(v * LANES);
                    sums[r][v] = unsafe { _mm512_maskz_loadu_ps(masks[v], from) };
                }
            }
        }
        for (i, column) in panel.iter().enumerate() {
            let mut w = [_mm512_setzero_si512(); VECTORS];
            for v in 0..VECTORS {
                w[v] = unsafe { _mm512_loadu_si512(column[v * LANES..][..LANES].as_ptr().cast()) };
            }
            for r in 0..R {
                let x = bf16(_mm512_set1_epi32(x[r][i] as i32));
                for v in 0..VECTORS {
                    sums[r][v] = _mm512_dpbf16_ps(sums[r][v], bf16(w[v]), x);
                }
            }
        }
        let bias = self.bias.filter(|_| block.end == self.weight.inputs.div_ceil(2));
        for r in 0..R {
            let y = unsafe { self.target.part(row + r, first, len) };
            for v in 0..VECTORS {
                let mut sum = sums[r][v];
                if let Some(bias) = bias {
                    let bias = &bias[first..][..len];
                    let from = bias.as_ptr().wrapping_add(v * LANES);
                    sum = _mm512_add_ps(sum, unsafe { _mm512_maskz_loadu_ps(masks[v], from) });
                }
                let to = y.as_mut_ptr().wrapping_add(v * LANES);
                unsafe { _mm512_mask_storeu_ps(to, masks[v], sum) };
            }
        }
        R
    }
}

/// The same bits as pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn bf16(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(pairs) }
}

#[cfg(test)]
mod tests {
    use super::super::element::{Bf16, Element, FloatType};
    use super::super::{Tier, matmul::matmul};
    use super::*;
    use crate::testing::Random;

    /// Relative to the sum of absolute products: some thousand roundings of 2^-24 at most.
    const TOLERANCE: f64 = 1e-5;

    fn proof() -> Option<Avx512Bf16> {
        match Tier::detect() {
            Tier::Avx512(avx512) => avx512.bf16(),
            _ => None,
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

    #[test]
    fn transposes() {
        if proof().is_none() {
            return;
        }
        let rows: [[u32; LANES]; LANES] =
            std::array::from_fn(|i| std::array::from_fn(|j| (i * 100 + j) as u32));
        // SAFETY: the processor has AVX-512 (above); arrays and vectors are both 1 KiB of plain bits.
        let out: [[u32; LANES]; LANES] =
            unsafe { std::mem::transmute(transposed(std::mem::transmute(rows))) };
        for i in 0..LANES {
            for j in 0..LANES {
                assert_eq!(out[j][i], rows[i][j], "{i},{j}");
            }
        }
    }

    #[test]
    fn agrees_with_f64_on_rounded_activations() {
        let Some(proof) = proof() else { return };
        let mut random_numbers = Random::new(31);
        for case in 0..60 {
            let inputs = [1, 2, 31, 32, 33, 511, 512, 513, 1100][random_numbers.below(9)];
            let outputs = 1 + random_numbers.below(150);
            let rows = 1 + random_numbers.below(14);
            let weights = random(&mut random_numbers, inputs * outputs);
            let x = random(&mut random_numbers, rows * inputs);
            let bias = random(&mut random_numbers, outputs);
            let bytes = stored(&weights);
            let weights = FloatType::Bf16.widen(&bytes[1..]);
            let y = panel_matmul_bf16(proof, matrix(&bytes, inputs), Some(&bias), &x);
            assert_eq!(y.len(), rows * outputs);
            for (at, &found) in y.iter().enumerate() {
                let (row, output) = (at / outputs, at % outputs);
                let mut exact = f64::from(bias[output]);
                let mut scale = exact.abs();
                for i in 0..inputs {
                    let x = half::bf16::from_f32(x[row * inputs + i]).to_f64();
                    let product = x * f64::from(weights[output * inputs + i]);
                    exact += product;
                    scale += product.abs();
                }
                assert!(
                    (f64::from(found) - exact).abs() <= TOLERANCE * scale,
                    "case {case} at {row},{output} of {inputs}: {found} {exact}"
                );
            }
        }
    }

    #[test]
    fn rows_parts_and_threads_do_not_change_a_bit() {
        let Some(proof) = proof() else { return };
        let mut random_numbers = Random::new(32);
        let (inputs, outputs, rows) = (1037, 131, 150);
        let bytes = stored(&random(&mut random_numbers, inputs * outputs));
        let matrix = matrix(&bytes, inputs);
        let x = random(&mut random_numbers, rows * inputs);
        let product = |x: &[f32]| panel_matmul_bf16(proof, matrix, None, x);
        let whole = product(&x);
        for threads in [1, 2, 3, 5, 12] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(|| product(&x)) == whole, "{threads} threads");
        }
        for chunk in [1, 2, 7, 16, 64] {
            let cut: Vec<f32> = x.chunks(chunk * inputs).flat_map(product).collect();
            assert!(cut == whole, "chunks of {chunk}");
        }
    }

    #[test]
    fn numbers_that_are_none_stay_in_their_row() {
        let Some(proof) = proof() else { return };
        let (inputs, outputs) = (70, 20);
        let bytes = stored(&vec![0.5; inputs * outputs]);
        let mut x = vec![1.0; 3 * inputs];
        x[inputs + 9] = f32::NAN;
        x[2 * inputs + 69] = f32::INFINITY;
        let y = panel_matmul_bf16(proof, matrix(&bytes, inputs), None, &x);
        assert!(y[..outputs].iter().all(|&value| value == 35.0));
        assert!(y[outputs..2 * outputs].iter().all(|value| value.is_nan()));
        assert!(y[2 * outputs..].iter().all(|&value| value == f32::INFINITY));
    }

    #[test]
    #[ignore]
    fn rate() {
        let proof = proof().unwrap();
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for (outputs, inputs) in [(2048, 2048), (512, 2048), (8192, 2048), (2048, 8192)] {
                let copies = (1 << 28) / (outputs * inputs * 2);
                let all: Vec<u8> = (0..copies)
                    .flat_map(|c| (0..outputs * inputs).map(move |i| i + c))
                    .flat_map(|i| half::bf16::from_f32((i % 97) as f32 * 0.01 - 0.5).to_le_bytes())
                    .collect();
                for rows in [1, 2, 4, 8, 32, 128, 512] {
                    let x: Vec<f32> =
                        (0..rows * inputs).map(|i| (i % 89) as f32 * 0.02 - 0.9).collect();
                    let mut copy = 0;
                    let mut time = |run: &(dyn Fn(Matrix<'_>) -> Vec<f32> + Sync)| {
                        let begin = std::time::Instant::now();
                        let mut n = 0;
                        while begin.elapsed().as_millis() < 150 {
                            let bytes = &all[copy % copies * outputs * inputs * 2..]
                                [..outputs * inputs * 2];
                            copy += 1;
                            let weight = Matrix { bytes, float: FloatType::Bf16, inputs };
                            std::hint::black_box(pool.install(|| run(weight)));
                            n += 1;
                        }
                        begin.elapsed().as_secs_f64() / n as f64
                    };
                    let panel = time(&|w| panel_matmul_bf16(proof, w, None, &x));
                    let plain = if rows <= 32 {
                        time(&|w| matmul(Tier::detect(), w, None, &x))
                    } else {
                        0.0
                    };
                    let macs = (rows * outputs * inputs) as f64;
                    eprintln!(
                        "{threads} thr [{outputs},{inputs}] rows {rows}: panel {:.3} ms {:.1} GMAC/s ({:.2} of 32/cycle at 3.7) {:.1} GB/s; f32 {:.3} ms ratio {:.2}",
                        panel * 1e3,
                        macs / panel / 1e9,
                        macs / panel / (threads as f64 * 32.0 * 3.7e9),
                        (outputs * inputs * 2) as f64 / panel / 1e9,
                        plain * 1e3,
                        panel / plain
                    );
                }
            }
        }
    }
}
