//! The GEMV, and the GEMM of few rows, of decode: weights in bf16 are multiplied in place, as they lie in memory, which
//! sets the pace, with up to eight rows at a time: their planes are the columns of one tile.
//!
//! Every element of the result is two chains over the inputs, 32 at a time: one of `w · high`, one of
//! `w · low`, each as `tdpbf16ps` adds 16 pairs in order, from an accumulator of zero; then `high + low`, then
//! `+ bias`. Nothing else enters it: neither other rows nor tiles or threads.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::in_place::{InPlace, Prefetches, Step};
use super::shape::{STEP, STRIP, Tile, proof, row_bytes};
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Matrix, Weight, WeightKind};
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::pairs::split_pairs;
use crate::device::cpu::isa::x86::tiles::{LINE, TILE_ROWS, Tiles, tile, transpose_into, zero};
use crate::device::cpu::isa::x86::{Amx, Line};
use crate::device::cpu::pool::{Tasks, current_threads};

/// Most rows that pass over weights together: half the columns of a tile.
const ROWS: usize = TILE_ROWS / 2;
/// Tasks per thread, so that a thread that is held up leaves its share to others.
const TASKS_PER_THREAD: usize = 8;
/// Weight bytes of a task with several passes: what stays in a second-level cache.
const TASK_BYTES: usize = 256 << 10;
/// Rows of activations as tiles.
struct FewActivations {
    passes: Vec<Pass>,
}

/// At most [`ROWS`] of them.
struct Pass {
    rows: Range<usize>,
    /// Columns of each plane: the least power of two that is not less than the rows.
    width: usize,
    /// For each step a tile of 16 rows, each of which has a pair of inputs of every column: those
    /// of the upper plane, then those of the lower one. Columns and inputs past the end are zero.
    lines: Vec<Line>,
}

impl Pass {
    /// Bytes of a row of a tile.
    fn row_bytes(&self) -> usize {
        self.width * 2 * size_of::<f32>()
    }

    /// Lines of memory of a tile.
    fn tile_lines(&self) -> usize {
        self.row_bytes() * TILE_ROWS / LINE
    }
}

impl FewActivations {
    fn new(proof: Amx, x: &[f32], inputs: usize) -> FewActivations {
        let steps = inputs.div_ceil(STEP);
        let pass = |(index, x): (usize, &[f32])| {
            let rows = x.len() / inputs;
            let width = rows.next_power_of_two();
            let rows = index * ROWS..index * ROWS + rows;
            let mut pass = Pass { rows, width, lines: Vec::new() };
            pass.lines.resize(steps * pass.tile_lines(), Line::ZERO);
            let _: Amx = proof;
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { split(x, inputs, &mut pass) };
            pass
        };
        FewActivations { passes: x.chunks(ROWS * inputs).enumerate().map(pass).collect() }
    }
}

/// Fills the tiles of a pass.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split(x: &[f32], inputs: usize, pass: &mut Pass) {
    let (tile_lines, row_bytes) = (pass.tile_lines(), pass.row_bytes());
    for (step, tile) in pass.lines.chunks_exact_mut(tile_lines).enumerate() {
        let mut planes = [_mm512_setzero_si512(); TILE_ROWS];
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            let x = &x[step * STEP..inputs.min((step + 1) * STEP)];
            [planes[row], planes[pass.width + row]] = split_pairs(x);
        }
        let mut to = MaybeUninit::uninit();
        transpose_into(planes, &mut to);
        // SAFETY: all of it is written.
        let to: Tile = unsafe { to.assume_init() };
        let tile = tile.iter_mut().flat_map(|line| line.0.chunks_exact_mut(row_bytes));
        for (tile, pair) in tile.zip(&to) {
            tile.copy_from_slice(&pair.0[..row_bytes]);
        }
    }
}

/// The GEMV and GEMM of rows of decode with weights in bf16; an activation is the sum of two bf16.
pub(crate) struct NarrowTiles;

// SAFETY: the passes are all rows, a task writes each pass's rows of its outputs, and the tasks' ranges are all
// outputs.
unsafe impl Gemm for NarrowTiles {
    fn form(&self, _: WeightKind) -> Form {
        Form::NarrowBf16Tiles
    }

    fn prepare<'x>(&self, tier: Tier, weight: &Weight<'_>, x: &'x [f32]) -> Prepared<'x> {
        weight.check(x, None);
        let made = FewActivations::new(proof(tier), x, weight.inputs());
        Prepared::new(x, Form::NarrowBf16Tiles, made)
    }

    fn tasks<'a>(
        &self,
        tier: Tier,
        weight: Weight<'a>,
        bias: Option<&'a [f32]>,
        x: &'a Prepared<'a>,
        y: Target<'a>,
    ) -> Tasks<'a> {
        let (proof, weight) = (proof(tier), weight.float());
        let (_, outputs, parallel) = weight.check(x.values(), bias);
        let x = x.made::<FewActivations>(Form::NarrowBf16Tiles);
        let target = y;
        let share = outputs.div_ceil(TASKS_PER_THREAD * current_threads());
        let share = match x.passes.len() {
            0 | 1 => share,
            _ => share.min(TASK_BYTES / weight.row_bytes()),
        };
        let share = share.next_multiple_of(STRIP).max(STRIP);
        let run = move |task: usize| {
            let outputs = task * share..((task + 1) * share).min(outputs);
            let task = Task { weight, bias, outputs, target };
            for pass in &x.passes {
                let tiles = Tiles::narrow(proof, LINE, pass.row_bytes());
                task.run(&tiles, pass);
            }
        };
        Tasks::new(outputs.div_ceil(share), weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        // Rows of a pass are rounded up to a power of two, which is less than twice as many.
        let rows = rows.div_ceil(ROWS as u64).saturating_mul(ROWS as u64);
        Scratch { activations: row_bytes(inputs).saturating_mul(rows), ..Scratch::default() }
    }
}

/// One task of the product: all rows, some outputs.
struct Task<'a> {
    weight: Matrix<'a>,
    bias: Option<&'a [f32]>,
    outputs: Range<usize>,
    target: Target<'a>,
}

impl Task<'_> {
    fn run(&self, tiles: &Tiles, pass: &Pass) {
        assert_eq!(tiles.row_bytes(), (LINE, pass.row_bytes()), "tiles of a pass");
        let row_bytes = self.weight.row_bytes();
        for first in self.outputs.clone().step_by(STRIP) {
            let outputs = first..(first + STRIP).min(self.outputs.end);
            let weights = &self.weight.bytes[first * row_bytes..outputs.end * row_bytes];
            zero(tiles);
            // The first pass brings weights near, where the others find them.
            InPlace { weights, row_bytes, prefetch: pass.rows.start == 0 }.walk(
                |step, prefetches| {
                    let lines = pass.tile_lines();
                    let x = &pass.lines[step.index * lines..][..lines];
                    // SAFETY: these are tiles of this width.
                    unsafe { multiply(tiles, (x, pass.row_bytes()), step, prefetches) };
                },
            );
            let mut sums = [[Line::ZERO; TILE_ROWS]; 2];
            // SAFETY: there are tile registers, whose rows are not longer than those of a tile in
            // memory.
            unsafe {
                tile!(
                    "tilestored [{to} + {s}], tmm0",
                    "tilestored [{to} + {s} + 1024], tmm1";
                    to = sums.as_mut_ptr()
                );
            }
            self.finish(pass, &outputs, &sums);
        }
    }

    /// Writes the finished accumulators of some outputs, those of both planes added up, with the bias.
    fn finish(&self, pass: &Pass, outputs: &Range<usize>, sums: &[Tile; 2]) {
        for (sums, output) in sums.as_flattened().iter().zip(outputs.clone()) {
            let bias = self.bias.map_or(0.0, |bias| bias[output]);
            for (column, row) in pass.rows.clone().enumerate() {
                let sum = sums.lane(column) + sums.lane(pass.width + column);
                // SAFETY: no other task has these outputs, and this one holds one at a time.
                unsafe { self.target.part(row, output, 1)[0].write(sum + bias) };
            }
        }
    }
}

/// The micro-kernel: adds the products of a step to the accumulators of a strip.
///
/// # Safety
/// `x` is a tile of activations, 16 rows of `x_row_bytes` bytes, as the tile registers have them.
#[inline(always)]
unsafe fn multiply(
    _: &Tiles,
    (x, x_row_bytes): (&[Line], usize),
    step: Step,
    mut prefetches: Prefetches,
) {
    let (from, stride) = step.half(false);
    // SAFETY: there are tile registers; the caller's promise, and that of `Step`.
    unsafe {
        asm!(
            "tileloadd tmm6, [{x} + {x_stride}]",
            "tileloadd tmm4, [{from} + {stride}]",
            x = in(reg) x.as_ptr(), x_stride = in(reg) x_row_bytes,
            from = in(reg) from, stride = in(reg) stride,
            out("tmm4") _, out("tmm6") _,
            options(nostack, preserves_flags, readonly),
        );
    }
    prefetches.one();
    let (from, stride) = step.half(true);
    // SAFETY: as above.
    unsafe {
        asm!(
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{from} + {stride}]",
            from = in(reg) from, stride = in(reg) stride,
            out("tmm0") _, out("tmm5") _,
            options(nostack, preserves_flags, readonly),
        );
        prefetches.rest();
        asm!("tdpbf16ps tmm1, tmm5, tmm6", out("tmm1") _, options(nostack, nomem, preserves_flags));
    }
}
