//! The integer GEMM of many rows with tile registers: codes of some groups of some outputs are packed, widened to
//! bytes, into tiles, and all rows pass over them.

#![allow(clippy::needless_range_loop, reason = "vectors are indexed by output throughout")]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::activations::Activations;
use super::super::call::Call;
use super::super::vnni::task::{PARAM_GROUPS, Params, Task};
use super::block::{Block, Dots, PLANES, Strip};
use super::shape::{STEP, STRIP, Tile, widen};
use crate::device::cpu::buffer::kept;
use crate::device::cpu::gemm::amx::ahead::Ahead;
use crate::device::cpu::gemm::amx::finish::Finish;
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, MAX_GROUP, MIN_GROUP};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::tiles::{TILE_ROWS, Tiles, transpose_into};
use crate::device::cpu::isa::x86::{Amx, Line};
use crate::device::cpu::pool::{Tasks, for_each_mut};

/// Most tiles of outputs of a task.
const TILES: usize = 4 * STRIP;
/// Most outputs of a task.
const OUTPUTS: usize = TILES * TILE_ROWS;
/// Tiles of rows that pass over the weights of a task at a time: their accumulators are 256 KiB.
const PASS: usize = 32;
/// Most codes of each output in a block: [`PARAM_GROUPS`] of the widest groups.
const BLOCK: usize = PARAM_GROUPS * MAX_GROUP;

/// A thread's buffers.
#[derive(Default)]
struct Scratch {
    /// The packed codes of a block: `[tile of outputs, step, line]`.
    codes: Vec<Line>,
    /// Accumulators in f32: `[batch of tiles of rows, tile of outputs, tile of the batch, line]`.
    sums: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Upper bounds of the bytes of [`Packed`], or the fewer of [`FewPacked`](super::few::FewPacked), for `rows` rows of so
/// many inputs, and of what each thread keeps.
pub(crate) fn product_bytes(inputs: u64, rows: u64) -> (u64, u64) {
    // A scale and a sum for each of the smallest groups.
    let params = inputs.div_ceil(MIN_GROUP as u64) * 2 * size_of::<f32>() as u64;
    let row = inputs.div_ceil(STEP as u64).saturating_mul(2 * STEP as u64).saturating_add(params);
    let rows = rows.div_ceil(TILE_ROWS as u64).saturating_mul(TILE_ROWS as u64);
    let thread = OUTPUTS * BLOCK + PASS * TILES * size_of::<Tile>();
    (row.saturating_mul(rows), thread as u64)
}

/// Some groups of the outputs of a task.
struct Weights<'a> {
    groups: Range<usize>,
    /// `[tile of outputs, step, line]`.
    codes: &'a [Line],
    /// For each strip and tile.
    params: &'a [[Params<1>; STRIP]],
}

/// The tasks of the GEMM in the arithmetic of [`Numerics::Fast`](crate::options::Numerics::Fast).
pub(super) fn matmul<'a>(
    proof: Amx,
    call: Call<'a>,
    (x, packed): (&'a Activations, &'a Packed),
    y: Target<'a>,
) -> Tasks<'a> {
    let Call { weight, bias, .. } = call;
    let rows = call.rows();
    let share = call.share(STRIP * TILE_ROWS).min(OUTPUTS);
    call.by_outputs(share, y, move |outputs, target| {
        let task = Task { weight, bias, x, rows: 0..rows, outputs, target };
        SCRATCH.with_borrow_mut(|scratch| {
            let tiles = Tiles::new(proof, weight.group.min(STEP));
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe {
                match weight.acts {
                    Acts::Words => task.run_tiles::<1>(&tiles, packed, scratch),
                    Acts::Bytes => task.run_tiles::<PLANES>(&tiles, packed, scratch),
                }
            }
        });
    })
}

/// Activations as tiles. Rows and inputs past the end are zero.
pub(super) struct Packed {
    /// `[batch, step, plane, line]`, where a line has four codes of 16 rows. The planes of a batch are both of a tile
    /// of rows, or the lower ones of two.
    planes: Vec<Tile>,
    /// `[tile of rows, group]`: the scales of 16 rows, and the sums.
    params: Vec<[Line; 2]>,
    steps: usize,
    groups: usize,
}

impl Packed {
    /// Packs the activations of `call`, which `x` has as planes.
    pub(super) fn new(proof: Amx, call: &Call<'_>, x: &Activations) -> Packed {
        let (rows, groups) = (call.rows(), call.weight.groups());
        let steps = call.weight.inputs.div_ceil(STEP);
        let in_batch = in_batch(call.weight.acts);
        let (tiles, batch_rows) = (rows.div_ceil(TILE_ROWS), in_batch * TILE_ROWS);
        let batches = tiles.div_ceil(in_batch);
        let count = batches * steps * PLANES;
        let mut packed = Packed {
            planes: Vec::with_capacity(count),
            params: vec![[Line::ZERO; 2]; tiles * groups],
            steps,
            groups,
        };
        let spare = &mut packed.planes.spare_capacity_mut()[..count];
        let planes = spare.chunks_exact_mut(steps * PLANES);
        let mut batches: Vec<_> = planes.zip(packed.params.chunks_mut(in_batch * groups)).collect();
        let run =
            |batch: usize, (planes, params): &mut (&mut [MaybeUninit<Tile>], &mut [[Line; 2]])| {
                let rows = batch * batch_rows..((batch + 1) * batch_rows).min(rows);
                let _: Amx = proof;
                // SAFETY: `proof` is there, so the processor has the instructions.
                unsafe { pack(x, call.weight.acts, &rows, planes) };
                pack_params(x, &rows, params);
            };
        match call.parallel {
            true => for_each_mut(&mut batches, run),
            false => batches.iter_mut().enumerate().for_each(|(index, batch)| run(index, batch)),
        }
        // SAFETY: `pack` writes all tiles of all steps.
        unsafe { packed.planes.set_len(count) };
        packed
    }

    /// The planes of a batch of `ROWS` tiles of rows and the parameters of each of these, for some groups of so many
    /// codes. A tile past the last row has those of the one before.
    #[inline(always)]
    fn part<const ROWS: usize>(
        &self,
        batch: usize,
        groups: &Range<usize>,
        group: usize,
    ) -> (&[Tile], [&[[Line; 2]]; ROWS]) {
        let planes = &self.planes[batch * self.steps * PLANES..][..self.steps * PLANES];
        let steps = groups.start * group / STEP..(groups.end * group).div_ceil(STEP);
        let last = self.params.len() / self.groups - 1;
        let params = std::array::from_fn(|tile| {
            let tile = (batch * ROWS + tile).min(last);
            &self.params[tile * self.groups..][groups.clone()]
        });
        (&planes[steps.start * PLANES..steps.end * PLANES], params)
    }
}

/// Tiles of rows that are multiplied together: as many as [`PLANES`] hold.
fn in_batch(acts: Acts) -> usize {
    match acts {
        Acts::Words => 1,
        Acts::Bytes => PLANES,
    }
}

/// Packs the codes of the rows of a batch.
#[target_feature(enable = "avx512f")]
fn pack(x: &Activations, acts: Acts, rows: &Range<usize>, planes: &mut [MaybeUninit<Tile>]) {
    for (step, planes) in planes.chunks_exact_mut(PLANES).enumerate() {
        for (at, plane) in planes.iter_mut().enumerate() {
            let mut square = [_mm512_setzero_si512(); LANES];
            let skipped = if acts == Acts::Bytes { at * TILE_ROWS } else { 0 };
            for (lane, row) in rows.clone().skip(skipped).take(TILE_ROWS).enumerate() {
                let both = x.planes(row);
                let codes = if acts == Acts::Words && at == 0 { both.high } else { both.low };
                let codes = codes[step * STEP..][..STEP].as_ptr();
                // SAFETY: the slice is a vector long.
                square[lane] = unsafe { _mm512_loadu_si512(codes.cast()) };
            }
            transpose_into(square, plane);
        }
    }
}

/// Packs the scales and sums of the rows of a batch: `[tile of rows, group]`.
fn pack_params(x: &Activations, rows: &Range<usize>, params: &mut [[Line; 2]]) {
    let tiles = rows.len().div_ceil(TILE_ROWS);
    for (at, row) in rows.clone().enumerate() {
        let values = x.scales(row).iter().zip(x.sums(row));
        let groups = params.len() / tiles;
        let params = &mut params[at / TILE_ROWS * groups..][..groups];
        for (params, (scale, sum)) in params.iter_mut().zip(values) {
            params[0].set_lane(at % TILE_ROWS, *scale);
            params[1].set_lane(at % TILE_ROWS, *sum);
        }
    }
}

impl Task<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn run_tiles<const ROWS: usize>(&self, tiles: &Tiles, packed: &Packed, scratch: &mut Scratch) {
        let count = self.outputs.len().div_ceil(STRIP * TILE_ROWS) * STRIP;
        let batches = self.rows.len().div_ceil(ROWS * TILE_ROWS);
        let mut params = [const { [const { Params::<1>::ZERO }; STRIP] }; TILES / STRIP];
        let params = &mut params[..count / STRIP];
        let mut dots = Dots::default();
        for first in (0..batches).step_by(PASS / ROWS) {
            let pass = first..(first + PASS / ROWS).min(batches);
            let lines = pass.len() * count * ROWS * TILE_ROWS;
            let sums = kept(&mut scratch.sums, lines, Line::ZERO);
            let sums: &mut [Strip<ROWS>] =
                sums.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0;
            for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let groups = first..(first + PARAM_GROUPS).min(self.weight.groups());
                for (tile, params) in params.as_flattened_mut().iter_mut().enumerate() {
                    let first = self.outputs.start + tile * TILE_ROWS;
                    let end = (first + TILE_ROWS).min(self.outputs.end);
                    let outputs = first.min(end)..end;
                    self.fill_params(&outputs, &groups, true, params);
                }
                let codes = self.fill_tiles(&groups, count, &mut scratch.codes);
                let weights = Weights { groups, codes, params };
                self.pass_tiles(tiles, &pass, packed, &weights, sums, &mut dots);
            }
        }
    }

    /// Packs the codes of some groups as bytes, `[tile, step, line]`; outputs past the end are zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn fill_tiles<'a>(
        &self,
        groups: &Range<usize>,
        count: usize,
        lines: &'a mut Vec<Line>,
    ) -> &'a [Line] {
        let row_bytes = self.weight.row_bytes();
        let bytes = groups.start * self.group_bytes()..groups.end * self.group_bytes();
        let step_bytes = STEP / self.weight.bits.per_byte();
        let steps = bytes.len().div_ceil(step_bytes);
        let all = kept(lines, count * steps * TILE_ROWS, Line::ZERO);
        for (tile, lines) in all.chunks_exact_mut(steps * TILE_ROWS).enumerate() {
            let first = self.outputs.start + tile * TILE_ROWS;
            let there = self.outputs.end.saturating_sub(first).min(TILE_ROWS);
            let rows = self.weight.codes.get(first * row_bytes..).unwrap_or(&[]);
            let rows = &rows[..there * row_bytes];
            for (lines, at) in
                lines.chunks_exact_mut(TILE_ROWS).zip(bytes.clone().step_by(step_bytes))
            {
                let end = (at + step_bytes).min(bytes.end);
                lines[there..].fill(Line::ZERO);
                for (line, row) in lines.iter_mut().zip(rows.chunks_exact(row_bytes)) {
                    widen(self.weight.bits, &row[at..end], line);
                }
            }
        }
        all
    }

    /// Adds the products of the groups of a block to the accumulators of some batches of `ROWS` tiles of rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn pass_tiles<const ROWS: usize>(
        &self,
        tiles: &Tiles,
        batches: &Range<usize>,
        packed: &Packed,
        Weights { groups, codes, params }: &Weights<'_>,
        sums: &mut [Strip<ROWS>],
        dots: &mut Dots,
    ) {
        let group = self.weight.group;
        let mut ahead = Ahead::after(
            self.weight.codes,
            self.weight.row_bytes(),
            &self.outputs,
            groups.end * self.group_bytes(),
            PARAM_GROUPS * self.group_bytes(),
            params.len() * batches.len() * groups.len(),
        );
        let finish = Finish { bias: self.bias, target: self.target };
        for (batch, sums) in batches.clone().zip(sums.chunks_exact_mut(params.len())) {
            let finish = |strip: usize, sums: &Strip<ROWS>| {
                for (tile, sums) in sums.iter().enumerate() {
                    let first = self.outputs.start + (strip * STRIP + tile) * TILE_ROWS;
                    let outputs = first..(first + TILE_ROWS).min(self.outputs.end);
                    for (tile, sums) in sums.iter().enumerate() {
                        let first = (batch * ROWS + tile) * TILE_ROWS;
                        let rows = first..(first + TILE_ROWS).min(self.rows.end);
                        // SAFETY: `matmul` gives each of its tasks other outputs.
                        unsafe { finish.write(sums, outputs.clone(), rows) };
                    }
                }
            };
            let (planes, x_params) = packed.part(batch, groups, group);
            let block = Block {
                codes,
                params,
                planes,
                x_params,
                begin: groups.start == 0,
                group,
                finish: (groups.end == self.weight.groups()).then_some(&finish),
            };
            block.multiply(tiles, sums, dots, &mut ahead);
        }
    }
}
