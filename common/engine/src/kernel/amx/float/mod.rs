//! Weights in bf16: here beside rows of prompts, in `few` beside generated ones. An activation is
//! `high = bf16(x)`, or the sum of that and of `low = bf16(x - high)`, each rounded to nearest, ties to
//! even: one plane or two, as [`Precision`] says; two for generated rows.
//!
//! Every element of the result is one chain over the inputs, 32 at a time: `sum += w · high` of
//! these 32, then `sum += w · low` if there is one, each as `tdpbf16ps` adds 16 pairs in order, from
//! a sum of zero; then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or
//! threads.

mod activations;
mod block;
mod few;

use std::cell::RefCell;
use std::ops::Range;

pub(in super::super) use self::activations::Activations;
use self::block::Block;
pub(in super::super) use self::few::{FewActivations, few_float_matmul};
use super::super::Precision;
use super::super::buffer::{resize_exact, unset};
use super::super::inputs::Inputs;
use super::super::matmul::Matrix;
use super::super::target::Target;
use super::super::x86::{Line, read_bytes};
use super::{Ahead, Amx, Finish, LINE, TILE_ROWS, Tiles};
use crate::pool::{current_threads, for_each_apart};

/// Inputs of one step: those of one row of a tile.
const STEP: usize = LINE / 2;
/// Steps of a block, whose sums stay in registers: their way to memory and back costs as much as
/// four. More, and two planes of a pair of row tiles leave the first-level cache between two strips.
const BLOCK_STEPS: usize = 8;
/// Outputs computed together: two tiles.
const STRIP: usize = 2 * TILE_ROWS;
/// Most outputs of a task, whose weights of one block are then 128 KiB.
const OUTPUTS: usize = 8 * STRIP;
/// Bytes of activations up to which a task has one strip: they stay in the second-level cache from
/// one strip to the next, and the weights of a block in the first-level cache.
const FEW_BYTES: usize = 1 << 20;
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

/// `x · weightᵀ + bias` with `x` in this precision: `x` is `[rows, inputs]`, `weight` is bf16, the
/// result `[rows, outputs]`, all row-major.
///
/// Runs on the current pool. `bias` has one element per output. Of one [`Inputs`] all products are
/// in the same precision.
pub(in super::super) fn float_matmul(
    proof: Amx,
    precision: Precision,
    weight: Matrix<'_>,
    bias: Option<&[f32]>,
    x: &Inputs<'_>,
) -> Vec<f32> {
    let activations = x.values();
    let (rows, outputs, parallel) = weight.check(activations, bias);
    let mut y = unset(rows * outputs);
    let split = || Activations::split(proof, precision, activations, weight.inputs, parallel);
    let x = x.split.get_or_init(split);
    assert_eq!(x.precision, precision, "one precision");
    let target = Target::new(&mut y, outputs);
    let share = outputs.div_ceil(TASKS_PER_THREAD * current_threads());
    let most = if size_of_val(&x.tiles[..]) <= FEW_BYTES { STRIP } else { OUTPUTS };
    let share = share.next_multiple_of(STRIP).min(most);
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
        resize_exact(&mut scratch.weights, strips * depth * STRIP_LINES, Line::ZERO);
        let pairs = self.x.rows.div_ceil(PAIR);
        for first in (0..pairs).step_by(PASS / PAIR) {
            let pairs = first..(first + PASS / PAIR).min(pairs);
            resize_exact(&mut scratch.sums, pairs.len() * strips * 4 * TILE_ROWS, Line::ZERO);
            for first in (0..self.x.steps).step_by(BLOCK_STEPS) {
                let block = first..(first + BLOCK_STEPS).min(self.x.steps);
                let rounds = strips * (STRIP + pairs.len() * block.len());
                let mut ahead = Ahead::after(
                    self.weight.bytes,
                    self.weight.row_bytes(),
                    &self.outputs,
                    block.end * LINE,
                    BLOCK_STEPS * LINE,
                    rounds,
                );
                self.fill(&block, &mut scratch.weights, &mut ahead);
                self.pass(tiles, &block, &pairs, scratch, &mut ahead);
            }
        }
    }

    /// Copies the weights of a block; outputs and inputs past the end are zero. Asks memory for some
    /// more of `ahead` with each row.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn fill(&self, block: &Range<usize>, lines: &mut [Line], ahead: &mut Ahead) {
        let row_bytes = self.weight.row_bytes();
        let count = self.outputs.len().div_ceil(STRIP);
        let strips = lines.chunks_exact_mut(block.len() * STRIP_LINES).take(count);
        for (strip, lines) in strips.enumerate() {
            let first = self.outputs.start + strip * STRIP;
            let there = (self.outputs.end - first).min(STRIP);
            let rows = &self.weight.bytes[first * row_bytes..][..there * row_bytes];
            for row in 0..STRIP {
                let row_lines = lines[row..].iter_mut().step_by(STRIP_LINES);
                let Some(bytes) = rows.get(row * row_bytes..(row + 1) * row_bytes) else {
                    row_lines.for_each(|line| *line = Line::ZERO);
                    continue;
                };
                let bytes = &bytes[block.start * LINE..];
                for (line, bytes) in row_lines.zip(bytes.chunks(LINE)) {
                    line.write(read_bytes(bytes));
                }
                ahead.ask();
            }
        }
    }

    /// Continues the sums of some pairs of row tiles with the weights of a block.
    #[target_feature(enable = "avx512f")]
    fn pass(
        &self,
        tiles: &Tiles,
        block: &Range<usize>,
        pairs: &Range<usize>,
        scratch: &mut Scratch,
        ahead: &mut Ahead,
    ) {
        let strip_lines = block.len() * STRIP_LINES;
        let strips = self.outputs.len().div_ceil(STRIP);
        let finish = Finish { bias: self.bias, target: self.target };
        let mut sums = scratch.sums.chunks_exact_mut(4 * TILE_ROWS);
        for pair in pairs.clone() {
            let x = self.x.pair(pair, block);
            let weights = scratch.weights.chunks_exact(strip_lines);
            for ((strip, weights), sums) in (0..strips).zip(weights).zip(&mut sums) {
                let steps = Block { weights, x, steps: block.len() };
                let go_on = block.start > 0;
                match self.x.precision {
                    Precision::Bf16 => steps.multiply::<1>(tiles, sums, go_on, ahead),
                    Precision::Bf16x2 => steps.multiply::<2>(tiles, sums, go_on, ahead),
                }
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
}
