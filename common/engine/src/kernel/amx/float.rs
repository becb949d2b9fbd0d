//! Weights in bf16. An activation is the sum of two bf16, `high = bf16(x)` and `low = bf16(x -
//! high)`, each rounded to nearest, ties to even.
//!
//! Every element of the result is one chain over the inputs, 32 at a time: `sum += w · high` of
//! these 32, then `sum += w · low`, each as `tdpbf16ps` adds 16 pairs in order, from a sum of
//! zero; then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or threads.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::PARALLEL_WORK;
use super::super::buffer::unset;
use super::super::inputs::Inputs;
use super::super::matmul::Matrix;
use super::super::simd::LANES;
use super::super::target::Target;
use super::super::x86::{Line, read_bytes};
use super::ahead::Ahead;
use super::{Amx, Finish, LINE, TILE_ROWS, Tiles, transpose_into};
use crate::pool::{current_threads, for_each_apart, for_each_mut};

/// Inputs of one step: those of one row of a tile.
const STEP: usize = LINE / 2;
/// Steps of a block, whose sums stay in registers: their way to memory and back costs as much as
/// four. More, and the activations of a pass leave the second-level cache between two strips.
const BLOCK_STEPS: usize = 16;
/// Outputs computed together: two tiles.
const STRIP: usize = 2 * TILE_ROWS;
/// Most outputs of a task, whose weights of one block are then 256 KiB.
const OUTPUTS: usize = 8 * STRIP;
/// Tasks per thread below which tasks are made smaller.
const TASKS_PER_THREAD: usize = 2;
/// Rows computed together: two tiles.
const PAIR: usize = 2 * TILE_ROWS;
/// Rows that pass over the weights of a task at a time: their sums are 512 KiB.
const PASS: usize = 16 * PAIR;
/// Lines of the weights of one strip and one step.
const STRIP_LINES: usize = 2 * TILE_ROWS;

/// Upper bounds of the bytes that a product holds beside its arguments and its result: for `rows`
/// rows of activations of so many inputs, and for each thread.
pub(in super::super) fn product_bytes(inputs: u64, rows: u64) -> (u64, u64) {
    // Four bytes per input: a bf16 in each plane.
    let row = inputs.div_ceil(STEP as u64).saturating_mul(4 * STEP as u64);
    let rows = rows.div_ceil(PAIR as u64).saturating_mul(PAIR as u64);
    let weights = OUTPUTS * BLOCK_STEPS * LINE;
    let sums = OUTPUTS * PASS * size_of::<f32>();
    (row.saturating_mul(rows), (weights + sums) as u64)
}

/// A tile in memory.
type Tile = [Line; TILE_ROWS];

/// What a thread works on.
#[derive(Default)]
struct Scratch {
    /// The weights of a block: `[strip, step, tile of the strip, line]`.
    weights: Vec<Line>,
    /// Sums: `[pair, strip, tile of the strip, tile of the pair, line]`.
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `x · weightᵀ + bias` with `x` as the sum of two bf16: `x` is `[rows, inputs]`, `weight` is
/// bf16, the result `[rows, outputs]`, all row-major.
///
/// Runs on the current pool. `bias` has one element per output.
pub(in super::super) fn float_matmul(
    proof: Amx,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    x: &Inputs<'_>,
) -> Vec<f32> {
    let outputs = weight.outputs();
    let activations = x.values();
    let rows = activations.len() / weight.inputs;
    assert_eq!(activations.len(), rows * weight.inputs, "whole rows");
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "a bias each");
    let mut y = unset(rows * outputs);
    let parallel = rows * outputs * weight.inputs >= PARALLEL_WORK;
    let split = || Activations::split(proof, activations, weight.inputs, parallel);
    let x = x.split.get_or_init(split);
    let target = Target::new(&mut y, outputs);
    let share = outputs.div_ceil(TASKS_PER_THREAD * current_threads());
    let share = share.next_multiple_of(STRIP).min(OUTPUTS);
    let run = |task: usize| {
        let outputs = task * share..((task + 1) * share).min(outputs);
        let task = Task { weight, bias, x, outputs, target };
        SCRATCH.with_borrow_mut(|scratch| {
            let tiles = Tiles::new(proof, LINE);
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { task.run(&tiles, scratch) }
        });
    };
    let tasks = outputs.div_ceil(share);
    if parallel {
        for_each_apart(tasks, run);
    } else {
        (0..tasks).for_each(run);
    }
    y
}

/// Rows of activations as tiles: `[pair of row tiles, step, plane, tile of the pair]`, where a
/// line of a tile has a pair of inputs of 16 rows. Rows and inputs past the end are zero; a last
/// pair has both tiles.
pub(in super::super) struct Activations {
    tiles: Vec<Tile>,
    rows: usize,
    steps: usize,
}

impl Activations {
    fn split(proof: Amx, x: &[f32], inputs: usize, parallel: bool) -> Activations {
        let (rows, steps) = (x.len() / inputs, inputs.div_ceil(STEP));
        let pair_tiles = steps * 4;
        let count = rows.div_ceil(PAIR) * pair_tiles;
        let mut tiles = Vec::with_capacity(count);
        let run = |_: usize, (tiles, x): &mut (&mut [MaybeUninit<Tile>], &[f32])| {
            let _: Amx = proof;
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { split_pair(x, inputs, tiles) }
        };
        let spare = tiles.spare_capacity_mut()[..count].chunks_exact_mut(pair_tiles);
        let mut pairs: Vec<_> = spare.zip(x.chunks(PAIR * inputs)).collect();
        match parallel {
            true => for_each_mut(&mut pairs, run),
            false => pairs.iter_mut().enumerate().for_each(|(index, pair)| run(index, pair)),
        }
        // SAFETY: `split_pair` writes all tiles of all steps.
        unsafe { tiles.set_len(count) };
        Activations { tiles, rows, steps }
    }

    /// The tiles of one pair from a step on.
    fn pair(&self, pair: usize, step: usize) -> &[Tile] {
        &self.tiles[pair * self.steps * 4..][step * 4..self.steps * 4]
    }
}

/// Splits at most [`PAIR`] rows into the tiles of a pair: all of them, with zeros for rows that
/// are not.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_pair(x: &[f32], inputs: usize, tiles: &mut [MaybeUninit<Tile>]) {
    for tile in 0..2 {
        let x = x.get(tile * TILE_ROWS * inputs..).unwrap_or(&[]);
        let rows = (x.len() / inputs).min(TILE_ROWS);
        for (step, tiles) in tiles.chunks_exact_mut(4).enumerate() {
            let first = step * STEP;
            let here = (inputs - first).min(STEP);
            let mask = u32::MAX >> (STEP - here);
            let mut high = [_mm512_setzero_si512(); TILE_ROWS];
            let mut low = high;
            for row in 0..rows {
                let from = x[row * inputs + first..][..here].as_ptr();
                // SAFETY: masked loads touch the elements of the slice alone.
                let (a, b) = unsafe {
                    (
                        _mm512_maskz_loadu_ps(mask as u16, from),
                        _mm512_maskz_loadu_ps((mask >> LANES) as u16, from.wrapping_add(LANES)),
                    )
                };
                high[row] = pairs(a, b);
                low[row] = pairs(
                    _mm512_sub_ps(a, widen_low(high[row])),
                    _mm512_sub_ps(b, widen_high(high[row])),
                );
            }
            transpose_into(high, &mut tiles[tile]);
            transpose_into(low, &mut tiles[2 + tile]);
        }
    }
}

/// `a` and `b` rounded: 16 of `a`, then 16 of `b`.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn pairs(a: __m512, b: __m512) -> __m512i {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(b, a)) }
}

/// The first 16 of 32 bf16.
#[target_feature(enable = "avx512f")]
#[inline]
fn widen_low(pairs: __m512i) -> __m512 {
    let half = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(pairs));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(half))
}

/// The last 16 of 32 bf16.
#[target_feature(enable = "avx512f")]
#[inline]
fn widen_high(pairs: __m512i) -> __m512 {
    let half = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(pairs));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(half))
}

/// All rows, some outputs.
struct Task<'a> {
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    outputs: Range<usize>,
    target: Target<'a>,
}

impl Task<'_> {
    #[target_feature(enable = "avx512f,avx512bw")]
    fn run(&self, tiles: &Tiles, scratch: &mut Scratch) {
        let strips = self.outputs.len().div_ceil(STRIP);
        let depth = self.x.steps.min(BLOCK_STEPS);
        scratch.weights.resize(strips * depth * STRIP_LINES, Line::ZERO);
        let pairs = self.x.rows.div_ceil(PAIR);
        for first in (0..pairs).step_by(PASS / PAIR) {
            let pairs = first..(first + PASS / PAIR).min(pairs);
            scratch.sums.resize(pairs.len() * strips * 4 * TILE_ROWS, Line::ZERO);
            for first in (0..self.x.steps).step_by(BLOCK_STEPS) {
                let block = first..(first + BLOCK_STEPS).min(self.x.steps);
                self.fill(&block, &mut scratch.weights);
                self.pass(tiles, &block, &pairs, scratch);
            }
        }
    }

    /// Copies the weights of a block; outputs and inputs past the end are zero.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn fill(&self, block: &Range<usize>, lines: &mut [Line]) {
        let row_bytes = self.weight.inputs * 2;
        let count = self.outputs.len().div_ceil(STRIP);
        let strips = lines.chunks_exact_mut(block.len() * STRIP_LINES).take(count);
        for (strip, lines) in strips.enumerate() {
            let first = self.outputs.start + strip * STRIP;
            let there = (self.outputs.end - first).min(STRIP);
            let rows = &self.weight.bytes[first * row_bytes..][..there * row_bytes];
            for (step, lines) in block.clone().zip(lines.chunks_exact_mut(STRIP_LINES)) {
                let here = step * LINE..((step + 1) * LINE).min(row_bytes);
                lines[there..].fill(Line::ZERO);
                for (line, row) in lines.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                    line.write(read_bytes(&row[here.clone()]));
                }
            }
        }
    }

    /// Continues the sums of some pairs of row tiles with the weights of a block.
    #[target_feature(enable = "avx512f")]
    fn pass(&self, _: &Tiles, block: &Range<usize>, pairs: &Range<usize>, scratch: &mut Scratch) {
        let strip_lines = block.len() * STRIP_LINES;
        let strips = self.outputs.len().div_ceil(STRIP);
        let mut ahead = self.ahead(block, pairs.len() * strips);
        let finish = Finish { bias: self.bias, target: self.target };
        let mut sums = scratch.sums.chunks_exact_mut(4 * TILE_ROWS);
        for pair in pairs.clone() {
            let x = &self.x.pair(pair, block.start)[..block.len() * 4];
            let weights = scratch.weights.chunks_exact(strip_lines);
            for ((strip, weights), sums) in (0..strips).zip(weights).zip(&mut sums) {
                let block_at = Block { weights, x, ahead: ahead.next(), steps: block.len() };
                // SAFETY: the tile registers are set up for whole tiles.
                unsafe { block_at.multiply(sums, block.start > 0) };
                if block.end == self.x.steps {
                    let sums: &[[Line; TILE_ROWS]] = sums.as_chunks().0;
                    for (index, sums) in sums.iter().enumerate() {
                        let output = self.outputs.start + strip * STRIP + index / 2 * TILE_ROWS;
                        let outputs = output..(output + TILE_ROWS).min(self.outputs.end);
                        let row = pair * PAIR + index % 2 * TILE_ROWS;
                        let rows = row..(row + TILE_ROWS).min(self.x.rows);
                        // SAFETY: `float_matmul` gives each of its tasks other outputs.
                        unsafe { finish.write(sums, outputs, rows) };
                    }
                }
            }
        }
    }

    /// The weights that are needed next, to be asked for in so many parts: those of the next
    /// block, or of the first one of the next task.
    fn ahead(&self, block: &Range<usize>, parts: usize) -> Ahead {
        let stride = self.weight.inputs * 2;
        let (first, at) = match block.end < self.x.steps {
            true => (self.outputs.start, block.end * LINE),
            false => (self.outputs.end, 0),
        };
        let last = (first + self.outputs.len()).min(self.weight.outputs());
        let count = last.saturating_sub(first);
        let row = self.weight.bytes.as_ptr().wrapping_add(first * stride + at);
        Ahead::new(row, stride, count, parts)
    }
}

/// One strip of weights and one pair of row tiles.
struct Block<'a> {
    /// `[step, tile, line]`.
    weights: &'a [Line],
    /// `[step, plane, tile]`.
    x: &'a [Tile],
    /// What to ask memory for, a line of each row per step.
    ahead: Ahead,
    /// At least one.
    steps: usize,
}

impl Block<'_> {
    /// Sets `sums`, four tiles, or continues them.
    ///
    /// # Safety
    /// The tile registers are set up for whole tiles.
    unsafe fn multiply(&self, sums: &mut [Line], go_on: bool) {
        assert!(self.steps > 0 && self.weights.len() >= self.steps * STRIP_LINES);
        assert!(self.x.len() >= self.steps * 4 && sums.len() >= 4 * TILE_ROWS);
        // SAFETY: all tiles are inside the slices by the lines above; prefetching touches nothing.
        unsafe {
            let sums = sums.as_mut_ptr().cast::<u8>();
            asm!(
                "test {go_on}, {go_on}",
                "jz 3f",
                "tileloadd tmm0, [{c} + {s}]",
                "tileloadd tmm1, [{c} + {s} + 1024]",
                "tileloadd tmm2, [{c} + {s} + 2048]",
                "tileloadd tmm3, [{c} + {s} + 3072]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{w} + {s}]",
                "tileloadd tmm6, [{x} + {s}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{x} + {s} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{w} + {s} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{x} + {s} + 2048]",
                "mov {row}, {ahead}",
                "mov {rows}, {count}",
                "test {rows}, {rows}",
                "jz 5f",
                "4:",
                "prefetcht1 [{row}]",
                "add {row}, {stride}",
                "dec {rows}",
                "jnz 4b",
                "5:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{x} + {s} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {w}, 2048",
                "add {x}, 4096",
                "add {ahead}, 64",
                "dec {n}",
                "jnz 2b",
                "tilestored [{c} + {s}], tmm0",
                "tilestored [{c} + {s} + 1024], tmm1",
                "tilestored [{c} + {s} + 2048], tmm2",
                "tilestored [{c} + {s} + 3072], tmm3",
                w = inout(reg) self.weights.as_ptr() => _,
                x = inout(reg) self.x.as_ptr() => _,
                ahead = inout(reg) self.ahead.row => _,
                count = in(reg) self.ahead.count,
                stride = in(reg) self.ahead.stride,
                row = out(reg) _,
                rows = out(reg) _,
                n = inout(reg) self.steps => _,
                c = in(reg) sums,
                s = in(reg) LINE,
                go_on = in(reg) u64::from(go_on),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Tier;
    use super::super::super::element::{Bf16, Element, FloatType};
    use super::*;
    use crate::pool::Pool;
    use crate::testing::Random;

    /// Relative to the sum of absolute products: 2^-17 for the activations, some hundred
    /// roundings of 2^-24, and bf16 products below 2^-126 that count as zero.
    const TOLERANCE: f64 = 2e-5;

    fn proof() -> Option<Amx> {
        match Tier::detect() {
            Tier::Amx(proof) => Some(proof),
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

    fn multiply(proof: Amx, weight: Matrix<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        float_matmul(proof, weight, bias, &Inputs::new(x))
    }

    #[test]
    fn agrees_with_f64() {
        let Some(proof) = proof() else { return };
        let mut numbers = Random::new(41);
        for case in 0..50 {
            let inputs = [1, 2, 31, 32, 33, 64, 1023, 1024, 1025, 2100][numbers.below(10)];
            let outputs = 1 + numbers.below(300);
            let rows = 1 + numbers.below(70);
            let weights = stored(&random(&mut numbers, inputs * outputs));
            let x = random(&mut numbers, rows * inputs);
            let bias = random(&mut numbers, outputs);
            let y = multiply(proof, matrix(&weights, inputs), Some(&bias), &x);
            let weights = FloatType::Bf16.widen(&weights[1..]);
            for (at, &found) in y.iter().enumerate() {
                let (row, output) = (at / outputs, at % outputs);
                let mut exact = f64::from(bias[output]);
                let mut scale = exact.abs();
                for i in 0..inputs {
                    let weight = f64::from(weights[output * inputs + i]);
                    let product = f64::from(x[row * inputs + i]) * weight;
                    exact += product;
                    scale += product.abs();
                }
                assert!(
                    (f64::from(found) - exact).abs() <= TOLERANCE * scale,
                    "case {case}, {rows} × {inputs} × {outputs} at {row},{output}: {found} {exact}"
                );
            }
        }
    }

    #[test]
    fn rows_and_threads_do_not_change_a_bit() {
        let Some(proof) = proof() else { return };
        let mut numbers = Random::new(42);
        for (inputs, outputs, rows) in [(1100, 301, 70), (48, 20, 600)] {
            let weights = stored(&random(&mut numbers, inputs * outputs));
            let weights = matrix(&weights, inputs);
            let x = random(&mut numbers, rows * inputs);
            let together = multiply(proof, weights, None, &x);
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads).unwrap();
                let again = pool.install(|| multiply(proof, weights, None, &x));
                assert_eq!(together, again, "{threads} threads");
            }
            for (row, several) in [(0, 1), (1, 1), (rows - 1, 1), (5, 20), (20, 33)] {
                let some = &x[row * inputs..][..several * inputs];
                let some = multiply(proof, weights, None, some);
                assert_eq!(together[row * outputs..][..some.len()], some, "{several} from {row}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_in_its_row() {
        let Some(proof) = proof() else { return };
        let mut numbers = Random::new(43);
        let (inputs, outputs) = (40, 17);
        let weights = stored(&random(&mut numbers, inputs * outputs));
        let mut x = random(&mut numbers, 3 * inputs);
        x[inputs + 3] = f32::INFINITY;
        let y = multiply(proof, matrix(&weights, inputs), None, &x);
        assert!(y[outputs..2 * outputs].iter().all(|y| !y.is_finite()));
        assert!(y[..outputs].iter().chain(&y[2 * outputs..]).all(|y| y.is_finite()));
    }
}
