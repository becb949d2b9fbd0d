//! Weights in bf16: here beside rows of prompts (few of them: `pair`), in `few` beside generated ones. An activation is
//! `high = bf16(x)`, or the sum of that and of `low = bf16(x - high)`, each rounded to nearest, ties to
//! even: one plane or two, as [`Precision`] says; two for generated rows.
//!
//! Every element of a prompt's product is one chain over the inputs, 32 at a time: `sum += w · high` of
//! these 32, then `sum += w · low` if there is one, each as `tdpbf16ps` adds 16 pairs in order, from
//! a sum of zero; then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or
//! threads.

mod activations;
mod block;
mod few;
mod in_place;
mod pack;
mod pair;
mod weights;

use std::cell::RefCell;
use std::ops::Range;

pub(crate) use self::activations::Activations;
use self::block::{Block, Soon};
pub(crate) use self::few::{FewActivations, few_float_matmul};
use self::pack::{Packer, Unit};
pub(crate) use self::weights::Weights;
use crate::device::cpu::buffer::Unset;
use crate::device::cpu::buffer::kept;
use crate::device::cpu::gemm::amx::ahead::Ahead;
use crate::device::cpu::gemm::amx::finish::Finish;
use crate::device::cpu::gemm::inputs::Inputs;
use crate::device::cpu::gemm::precision::Precision;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::isa::x86::Amx;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS, Tiles};
use crate::device::cpu::pool::{Tasks, current_threads};

/// Inputs of one step: those of one row of a tile.
const STEP: usize = LINE / 2;
/// Steps of a block, whose sums stay in registers: their way to memory and back costs as much as
/// four. More, and two planes of a pair of row tiles leave the first-level cache between two strips.
const BLOCK_STEPS: usize = 8;
/// Outputs computed together: two tiles.
const STRIP: usize = 2 * TILE_ROWS;
/// Most outputs of a unit, whose weights of one block are then 128 KiB.
const OUTPUTS: usize = 8 * STRIP;
/// Tasks per thread, so that a thread that is held up leaves some of its share to others. The first
/// unit of each is packed while nothing is multiplied.
const TASKS_PER_THREAD: usize = 2;
/// Rows computed together: two tiles.
const PAIR: usize = 2 * TILE_ROWS;
/// Rows that pass over the weights of a unit at a time: their sums are 512 KiB.
const PASS: usize = 16 * PAIR;
/// Most rows that pass over weights in bf16 as they lie in memory: one pair does so at memory's pace, two
/// take as long as copying would, or less. More are faster with weights copied next to each other.
const IN_PLACE_ROWS: usize = 2 * PAIR;
/// Lines of the weights of one strip and one step.
const STRIP_LINES: usize = 2 * TILE_ROWS;

/// Upper bounds of the bytes that a product holds beside its arguments and its result: for `rows`
/// rows of activations of so many inputs, and for each thread.
pub(crate) fn product_bytes(inputs: u64, rows: u64) -> (u64, u64) {
    // Four bytes per input: a bf16 in each plane. `few` has as many for each of at most eight rows,
    // rounded up to a power of two, which is less than a pair.
    let row = inputs.div_ceil(STEP as u64).saturating_mul(4 * STEP as u64);
    let rows = rows.div_ceil(PAIR as u64).saturating_mul(PAIR as u64);
    let weights = 2 * OUTPUTS * BLOCK_STEPS * LINE;
    let sums = OUTPUTS * PASS * size_of::<f32>();
    (row.saturating_mul(rows), (weights + sums) as u64)
}

/// A tile in memory.
type Tile = [Line; TILE_ROWS];

/// What a thread works on.
#[derive(Default)]
struct Scratch {
    /// The weights of a unit and of the next one: `[strip, step, tile of the strip, line]`.
    weights: [Vec<Line>; 2],
    /// Sums: `[pair, strip, tile of the strip, tile of the pair, line]`.
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `x · weightᵀ + bias` with `x` in this precision: `x` is `[rows, inputs]`, the
/// result `[rows, outputs]`, all row-major.
///
/// `bias` has one element per output; `y` gets the result when the tasks are done. Of one [`Inputs`] all products are
/// in the same precision.
pub(crate) fn float_matmul<'a>(
    proof: Amx,
    precision: Precision,
    weight: Weights<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Inputs<'a>,
    y: &'a mut Unset,
) -> Tasks<'a> {
    let activations = x.values();
    let (rows, outputs, parallel) = weight.check(activations, bias);
    let split = || Activations::split(proof, precision, activations, weight.inputs(), parallel);
    let x = x.split.get_or_init(split);
    assert_eq!(x.precision, precision, "one precision");
    let target = Target::new(y, rows, outputs);
    let share = outputs.div_ceil(TASKS_PER_THREAD * current_threads());
    let share = share.next_multiple_of(STRIP).max(STRIP);
    let run = move |task: usize| {
        let outputs = task * share..((task + 1) * share).min(outputs);
        let task = Task { weight, bias, x, outputs, target };
        SCRATCH.with_borrow_mut(|scratch| {
            let tiles = Tiles::new(proof, LINE);
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { task.run(&tiles, scratch) }
        });
    };
    Tasks::new(outputs.div_ceil(share), weight.bytes(), parallel, run)
}

/// All rows, some outputs.
struct Task<'a> {
    weight: Weights<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    outputs: Range<usize>,
    target: Target<'a>,
}

impl Task<'_> {
    /// One unit after the other; while one is multiplied, the next is packed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    fn run(&self, tiles: &Tiles, scratch: &mut Scratch) {
        if let Weights::Bf16(weight) = self.weight
            && self.x.rows <= IN_PLACE_ROWS
        {
            return self.run_in_place(tiles, weight);
        }
        let mut units = self.units();
        let (mut unit, mut next) = (units.next(), units.next());
        let most = unit.as_ref().map_or(0, Unit::lines);
        let [mut now, mut soon] = scratch.weights.each_mut().map(|all| kept(all, most, Line::ZERO));
        Packer::new(self.weight, unit.clone(), next.clone(), now, 1).advance();
        while let Some(this) = unit {
            let after = units.next();
            let sums = this.pairs.len() * this.strips() * 4 * TILE_ROWS;
            let sums = kept(&mut scratch.sums, sums, Line::ZERO);
            let rounds = this.pairs.len() * this.strips() * this.block.len();
            let packer = Packer::new(self.weight, next.clone(), after.clone(), soon, rounds);
            self.multiply_unit(tiles, &this, now, sums, packer);
            (now, soon) = (soon, now);
            (unit, next) = (next, after);
        }
    }

    /// All units, those of a sum one after the other.
    fn units(&self) -> impl Iterator<Item = Unit> {
        let (steps, pairs) = (self.x.steps, self.x.rows.div_ceil(PAIR));
        let cut = |range: Range<usize>, by: usize| {
            let end = range.end;
            range.step_by(by).map(move |first| first..(first + by).min(end))
        };
        cut(self.outputs.clone(), OUTPUTS).flat_map(move |outputs| {
            cut(0..pairs, PASS / PAIR).flat_map(move |pairs| {
                let outputs = outputs.clone();
                cut(0..steps, BLOCK_STEPS).map(move |block| Unit {
                    outputs: outputs.clone(),
                    pairs: pairs.clone(),
                    block,
                })
            })
        })
    }

    /// Continues the sums of a unit.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    fn multiply_unit(
        &self,
        tiles: &Tiles,
        unit: &Unit,
        packed: &[Line],
        sums: &mut [Line],
        packer: Packer<'_>,
    ) {
        let block = &unit.block;
        let mut soon = Soon { weights: packer, x: Ahead::slice::<Tile>(&[], 1) };
        let mut sums = sums.chunks_exact_mut(4 * TILE_ROWS);
        for pair in unit.pairs.clone() {
            let x = self.x.pair(pair, block);
            soon.x = Ahead::slice(self.x_after(pair, unit), unit.strips() * block.len());
            let packed = packed.chunks_exact(block.len() * STRIP_LINES);
            for ((strip, weights), sums) in (0..unit.strips()).zip(packed).zip(&mut sums) {
                let steps = Block { weights, x, steps: block.len() };
                let go_on = block.start > 0;
                match self.x.precision {
                    Precision::Bf16 | Precision::Bf16Both => {
                        steps.multiply::<1>(tiles, sums, go_on, &mut soon)
                    }
                    Precision::Bf16x2 => steps.multiply::<2>(tiles, sums, go_on, &mut soon),
                }
                if block.end == self.x.steps {
                    self.finish(unit.outputs.start + strip * STRIP, pair, sums);
                }
            }
        }
        debug_assert!(soon.weights.is_done(), "as many rounds as were said");
    }

    /// The tiles needed after those of a pair: the next pair's, or the next block's.
    fn x_after(&self, pair: usize, unit: &Unit) -> &[Tile] {
        if pair + 1 < unit.pairs.end {
            return self.x.pair(pair + 1, &unit.block);
        }
        let next = unit.block.end..(unit.block.end + BLOCK_STEPS).min(self.x.steps);
        self.x.pair(unit.pairs.start, &next)
    }

    /// Writes the sums of the strip that begins at output `first` and of a pair of row tiles.
    #[target_feature(enable = "avx512f")]
    fn finish(&self, first: usize, pair: usize, sums: &[Line]) {
        let finish = Finish { bias: self.bias, target: self.target };
        let sums: &[[Line; TILE_ROWS]] = sums.as_chunks().0;
        for (index, sums) in sums.iter().enumerate() {
            let output = (first + index / 2 * TILE_ROWS).min(self.outputs.end);
            let outputs = output..(output + TILE_ROWS).min(self.outputs.end);
            let row = pair * PAIR + index % 2 * TILE_ROWS;
            let rows = row..(row + TILE_ROWS).min(self.x.rows);
            // SAFETY: `float_matmul` gives each of its tasks other outputs.
            unsafe { finish.write(sums, outputs, rows) };
        }
    }
}
