//! The GEMM of rows of prefill: weights of some outputs are packed next to each other and all rows pass over them,
//! unless rows are few (`pair`).

use std::cell::RefCell;
use std::ops::Range;

use super::activations::Activations;
use super::block::{Block, Soon};
use super::pack::{Packer, Unit};
use super::shape::{PAIR, STRIP, STRIP_LINES, Tile, proof, row_bytes};
use super::task::Task;
use crate::device::cpu::buffer::kept;
use crate::device::cpu::gemm::amx::ahead::Ahead;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Weight, WeightKind};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::Line;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS, Tiles};
use crate::device::cpu::pool::{Tasks, current_threads};
use crate::options::Precision;

/// Steps of a block, whose accumulators stay in registers: their way to memory and back costs as much as
/// four. More, and two planes of a pair of row tiles leave the first-level cache between two strips.
const BLOCK_STEPS: usize = 8;
/// Tasks per thread, so that a thread that is held up leaves some of its share to others. The first
/// unit of each is packed while nothing is multiplied.
const TASKS_PER_THREAD: usize = 2;
/// Most outputs of a unit, whose weights of one block are then 128 KiB.
const OUTPUTS: usize = 8 * STRIP;
/// Rows that pass over the weights of a unit at a time: their accumulators are 512 KiB.
const PASS: usize = 16 * PAIR;
/// Most rows that pass over weights in bf16 as they lie in memory: one pair does so at memory's pace, two
/// take as long as packing would, or less. More are faster with weights packed next to each other.
const IN_PLACE_ROWS: usize = 2 * PAIR;

/// The memory that a thread works on.
#[derive(Default)]
struct Buffers {
    /// The packed weights of a unit and of the next one: `[strip, step, tile of the strip, line]`.
    weights: [Vec<Line>; 2],
    /// Accumulators: `[pair, strip, tile of the strip, tile of the pair, line]`.
    sums: Vec<Line>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// The GEMM of rows of prefill, rounded to this precision, with weights in bf16 or with packed matrices rounded to
/// that.
pub(crate) struct PromptTiles {
    pub(crate) precision: Precision,
}

// SAFETY: a task writes all rows of its outputs, and the tasks' ranges are all outputs.
unsafe impl Gemm for PromptTiles {
    fn form(&self, _: WeightKind) -> Form {
        Form::Bf16Tiles { planes: self.precision.planes() }
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        let (_, _, parallel) = weight.check(x, None);
        let split = Activations::split(proof(tier), self.precision, x, weight.inputs(), parallel);
        Prepared::new(x, self.form(weight.kind()), split)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let proof = proof(tier);
        let (_, outputs, parallel) = weight.check(x.values(), bias);
        let x = x.made::<Activations>(self.form(weight.kind()));
        let target = y;
        let share = outputs.div_ceil(TASKS_PER_THREAD * current_threads());
        let share = share.next_multiple_of(STRIP).max(STRIP);
        let run = move |task: usize| {
            let outputs = task * share..((task + 1) * share).min(outputs);
            let task = Task { weight, bias, x, outputs, target };
            BUFFERS.with_borrow_mut(|buffers| {
                let tiles = Tiles::new(proof, LINE);
                // SAFETY: `proof` is there, so the processor has the instructions.
                unsafe { task.run(&tiles, buffers) }
            });
        };
        Tasks::new(outputs.div_ceil(share), weight.bytes().len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        let rows = rows.div_ceil(PAIR as u64).saturating_mul(PAIR as u64);
        let weights = 2 * OUTPUTS * BLOCK_STEPS * LINE;
        let sums = OUTPUTS * PASS * size_of::<f32>();
        let thread = (weights + sums) as u64;
        Scratch {
            activations: row_bytes(inputs).saturating_mul(rows),
            thread,
            buffers: "bf16 tiles",
        }
    }
}

impl Task<'_> {
    /// One unit after the other; while one is multiplied, the next is packed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
    fn run(&self, tiles: &Tiles, buffers: &mut Buffers) {
        if let Weight::Float(weight) = self.weight
            && self.x.rows <= IN_PLACE_ROWS
        {
            return self.run_in_place(tiles, weight);
        }
        let mut units = self.units();
        let (mut unit, mut next) = (units.next(), units.next());
        let most = unit.as_ref().map_or(0, Unit::lines);
        let [mut now, mut soon] = buffers.weights.each_mut().map(|all| kept(all, most, Line::ZERO));
        Packer::new(self.weight, unit.clone(), next.clone(), now, 1).advance();
        while let Some(this) = unit {
            let after = units.next();
            let sums = this.pairs.len() * this.strips() * 4 * TILE_ROWS;
            let sums = kept(&mut buffers.sums, sums, Line::ZERO);
            let rounds = this.pairs.len() * this.strips() * this.block.len();
            let packer = Packer::new(self.weight, next.clone(), after.clone(), soon, rounds);
            self.multiply_unit(tiles, &this, now, sums, packer);
            (now, soon) = (soon, now);
            (unit, next) = (next, after);
        }
    }

    /// All units, those of the same accumulators one after the other.
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

    /// Adds the products of a unit to its accumulators, and writes those that end with it.
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
}
