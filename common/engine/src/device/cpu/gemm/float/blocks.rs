//! The GEMM of many rows with an f32, f16 or bf16 matrix, blocked for the caches: a block of weights, some inputs of
//! some outputs, is widened and packed once and stays in the second-level cache while all rows pass over it, a register
//! tile of rows and outputs at a time.
//!
//! A tile's accumulators have sixteen lanes, of which most processors have a part in a register. It goes over its
//! inputs once for each part, so that the accumulators of three rows or six and four outputs stay in registers: then
//! there are fewer loads than multiply-adds. Each lane of each accumulator adds the products that it does in `direct`,
//! in their order, so bits are the same.

use std::ops::Range;

use cake_checkpoint::FloatType;

use super::call::Call;
use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{Bf16, Element, F16, F32};
use crate::device::cpu::isa::prefetch::CACHE_LINE;
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

/// With fewer rows, widening weights into a block costs more than it saves.
pub(super) const LEAST_ROWS: usize = 12;
/// Outputs of a register tile: beside one vector of weights and those of three rows (of six, where there are 32
/// registers), as many accumulators as there are registers for.
const WIDTH: usize = 4;
/// Outputs of a block.
pub(super) const OUTPUTS: usize = 32;
/// Inputs of a block: the weights of a strip and the activations of three rows stay in a first-level cache of 32 KiB.
/// Of 256, 512, 768, 1024 and 2048 the fastest.
const INPUTS: usize = 1024;
/// Steps between prefetches of lines of the next block: many at a time hold up the loads behind them.
const BETWEEN: usize = 8;
/// Rows whose accumulators wait, in the cache, for the next block of the same outputs.
const ROWS: usize = 192;

/// One vector of inputs for each output of a tile. Of weights, the parts of all outputs that are used together lie
/// together, `[part, output, lane of the part]`: several loads in a cycle have to be from different banks of the
/// first-level cache, which are, on some processors, different halves of a line.
#[derive(Clone, Copy)]
#[repr(align(64))] // No vector reaches over two cache lines.
struct Step([[f32; LANES]; WIDTH]);

impl Step {
    const ZERO: Step = Step([[0.0; LANES]; WIDTH]);

    /// Sets the weights of an output.
    #[inline(always)]
    fn set<S: Simd>(&mut self, simd: S, output: usize, weights: S::V) {
        let mut lanes = [0.0; LANES];
        simd.store(weights, &mut lanes);
        for part in 0..S::PARTS {
            let at = part * WIDTH + output;
            simd.store_part(simd.load_part(&lanes, part), &mut self.0[at / S::PARTS], at);
        }
    }

    /// A part of the weights of an output.
    #[inline(always)]
    fn part<S: Simd>(&self, simd: S, output: usize, part: usize) -> S::Part {
        let at = part % S::PARTS * WIDTH + output;
        simd.load_part(&self.0[at / S::PARTS], at)
    }
}

/// A thread's buffers.
pub(crate) struct Held {
    /// `[outputs / WIDTH, steps]`: the packed weights of a block.
    weights: Vec<Step>,
    /// `[rows, outputs / WIDTH]` accumulators between blocks, in the order of tiles, where inputs are several blocks.
    sums: Vec<Step>,
}

impl Held {
    /// At most so many bytes.
    pub(crate) const BYTES: usize =
        (OUTPUTS * INPUTS.div_ceil(LANES) + ROWS * OUTPUTS) / WIDTH * size_of::<Step>();

    pub(crate) const fn new() -> Held {
        Held { weights: Vec::new(), sums: Vec::new() }
    }
}

/// Some inputs of some outputs of a product, and rows that pass over them.
struct Block {
    outputs: Range<usize>,
    rows: Range<usize>,
    inputs: Range<usize>,
}

impl Block {
    /// Tiles of outputs.
    fn strips(&self) -> usize {
        self.outputs.len().div_ceil(WIDTH)
    }

    /// Vectors of inputs; the last one may not be whole.
    fn steps(&self) -> usize {
        self.inputs.len().div_ceil(LANES)
    }
}

/// Where in a block a tile is.
struct At {
    /// The first of its rows.
    row: usize,
    /// Which of the block's tiles of outputs.
    strip: usize,
}

impl Call<'_> {
    /// All of the task.
    #[inline(always)]
    pub(super) fn blocks<S: Simd>(&self, simd: S, held: &mut Held) {
        // Accumulators of a single block wait for nothing.
        let most_rows = if self.weight.inputs > INPUTS { ROWS } else { self.rows };
        for start in self.range.clone().step_by(OUTPUTS) {
            let outputs = start..(start + OUTPUTS).min(self.range.end);
            for start in (0..self.rows).step_by(most_rows) {
                let rows = start..(start + most_rows).min(self.rows);
                for start in (0..self.weight.inputs).step_by(INPUTS) {
                    let inputs = start..(start + INPUTS).min(self.weight.inputs);
                    let block = Block { outputs: outputs.clone(), rows: rows.clone(), inputs };
                    self.block(simd, &block, held);
                }
            }
        }
    }

    #[inline(always)]
    fn block<S: Simd>(&self, simd: S, block: &Block, held: &mut Held) {
        let weights = kept(&mut held.weights, block.strips() * block.steps(), Step::ZERO);
        match self.weight.float {
            FloatType::F32 => self.widen::<S, F32>(simd, block, weights),
            FloatType::F16 => self.widen::<S, F16>(simd, block, weights),
            FloatType::BF16 => self.widen::<S, Bf16>(simd, block, weights),
        }
        let most = if S::MANY_REGISTERS { 6 } else { 3 };
        let mut ahead = self.ahead(block, block.rows.len().div_ceil(most) * S::PARTS);
        let waiting = match block.inputs.len() < self.weight.inputs {
            true => block.rows.len() * block.strips(),
            false => 0,
        };
        let sums = kept(&mut held.sums, waiting, Step::ZERO);
        let mut row = block.rows.start;
        while row < block.rows.end {
            let left = block.rows.end - row;
            // Rather two tiles of some rows than a full one and one of a single row.
            let rows = if left == most + 1 { most - 1 } else { left.min(most) };
            for (strip, weights) in weights.chunks_exact(block.steps()).enumerate() {
                let at = At { row, strip };
                match rows {
                    1 => self.tile_of_block::<S, 1>(simd, block, at, weights, sums, &mut ahead),
                    2 => self.tile_of_block::<S, 2>(simd, block, at, weights, sums, &mut ahead),
                    4 if S::MANY_REGISTERS => {
                        self.tile_of_block::<S, 4>(simd, block, at, weights, sums, &mut ahead);
                    }
                    5 if S::MANY_REGISTERS => {
                        self.tile_of_block::<S, 5>(simd, block, at, weights, sums, &mut ahead);
                    }
                    6 if S::MANY_REGISTERS => {
                        self.tile_of_block::<S, 6>(simd, block, at, weights, sums, &mut ahead);
                    }
                    _ => self.tile_of_block::<S, 3>(simd, block, at, weights, sums, &mut ahead),
                }
            }
            row += rows;
        }
    }

    /// Widens and packs the weights of a block, in the order that activations are in. Those of outputs past the last
    /// are the last one's.
    #[inline(always)]
    fn widen<S: Simd, E: Element>(&self, simd: S, block: &Block, weights: &mut [Step]) {
        let (inputs, steps) = (self.weight.inputs, block.steps());
        for (strip, to) in weights.chunks_exact_mut(steps).enumerate() {
            for o in 0..WIDTH {
                let output = (block.outputs.start + strip * WIDTH + o).min(block.outputs.end - 1);
                let first = (output - self.origin) * inputs + block.inputs.start;
                let bytes = &self.weight.bytes[first * E::BYTES..][..block.inputs.len() * E::BYTES];
                let (whole, tail) = E::chunks(bytes);
                let (to, last) = to.split_at_mut(whole.len());
                let (pairs, single) = whole.as_chunks();
                for (from, to) in pairs.iter().zip(to.as_chunks_mut::<2>().0) {
                    let (first, second) = E::load_two(simd, from);
                    to[0].set(simd, o, first);
                    to[1].set(simd, o, second);
                }
                if let (Some(from), Some(to)) = (single.first(), to.last_mut()) {
                    to.set(simd, o, E::load(simd, from));
                }
                if let Some(to) = last.first_mut() {
                    to.set(simd, o, E::load_tail(simd, tail));
                }
            }
        }
    }

    /// Adds the products of a block to the accumulators of a tile of `R` rows, and finishes them if the block is the
    /// last one of their inputs. Between blocks they are in `waiting`.
    #[inline(always)]
    fn tile_of_block<S: Simd, const R: usize>(
        &self,
        simd: S,
        block: &Block,
        At { row, strip }: At,
        weights: &[Step],
        waiting: &mut [Step],
        ahead: &mut Ahead,
    ) {
        let inputs = self.weight.inputs;
        let mut whole: [&[[f32; LANES]]; R] = [&[]; R];
        for (r, whole) in whole.iter_mut().enumerate() {
            *whole = self.x[(row + r) * inputs..][block.inputs.clone()].as_chunks().0;
        }
        let mut alone = [Step::ZERO; R];
        let at = (row - block.rows.start) * block.strips() + strip * R;
        let waiting = waiting.get_mut(at..).and_then(<[_]>::first_chunk_mut);
        let sums = waiting.unwrap_or(&mut alone);
        if block.inputs.start == 0 {
            *sums = [Step::ZERO; R];
        }
        let (weights, tail) = weights.split_at(block.inputs.len() / LANES);
        for part in 0..S::PARTS {
            simd.apart(Part { x: &whole, weights, part, sums, ahead });
        }
        if !tail.is_empty() {
            let mut last = [[[0.0; LANES]]; R]; // Inputs that are no whole vector.
            for (r, last) in last.iter_mut().enumerate() {
                let x = self.x[(row + r) * inputs..][block.inputs.clone()].as_chunks::<LANES>().1;
                last[0][..x.len()].copy_from_slice(x);
            }
            let last: [&[[f32; LANES]]; R] = last.each_ref().map(|last| &last[..]);
            for part in 0..S::PARTS {
                simd.apart(Part { x: &last, weights: tail, part, sums, ahead });
            }
        }
        if block.inputs.end == inputs {
            self.finish(simd, block.outputs.start + strip * WIDTH, row, sums);
        }
    }

    /// Writes the results of `R` rows from `row` on, and of some outputs from `first` on.
    #[inline(always)]
    fn finish<S: Simd, const R: usize>(&self, simd: S, first: usize, row: usize, sums: &[Step; R]) {
        let outputs = (self.range.end - first).min(WIDTH);
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: every output belongs to one task, which holds one part at a time.
            let to = unsafe { self.target.part(row + r, first, outputs) };
            for (o, to) in to.iter_mut().enumerate() {
                let bias = self.bias.map_or(0.0, |bias| bias[first + o]);
                to.write(simd.sum(simd.load(&sums.0[o])) + bias);
            }
        }
    }

    /// The lines of the block after this one, for so many passes over the steps of this one.
    fn ahead(&self, block: &Block, passes: usize) -> Ahead {
        let element = self.weight.float.bytes();
        let row_bytes = self.weight.row_bytes();
        let (first, inputs) = match block.inputs.end < self.weight.inputs {
            true => (block.outputs.start, block.inputs.end),
            false => (block.outputs.end, 0),
        };
        let start = (first - self.origin) * row_bytes + inputs * element;
        let width = (self.weight.inputs - inputs).min(INPUTS) * element;
        let lines = block.outputs.len() * width.div_ceil(CACHE_LINE);
        let times = passes * block.strips() * block.steps().div_ceil(BETWEEN);
        let each = if self.prefetch.is_some() { lines.div_ceil(times) } else { 0 };
        let row = self.weight.bytes.as_ptr().wrapping_add(start);
        Ahead { row, offset: 0, width, row_bytes, each, left: lines }
    }
}

/// The micro-kernel: adds the products of some steps to one part of the accumulators of `R` rows and [`WIDTH`] outputs.
struct Part<'a, const R: usize> {
    x: &'a [&'a [[f32; LANES]]; R],
    weights: &'a [Step],
    part: usize,
    sums: &'a mut [Step; R],
    ahead: &'a mut Ahead,
}

impl<const R: usize> Kernel for Part<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Part { x, weights, part, sums, ahead } = self;
        let mut held = [[simd.load_part(&sums[0].0[0], part); R]; WIDTH];
        for (o, held) in held.iter_mut().enumerate() {
            for (held, sums) in held.iter_mut().zip(&*sums) {
                *held = simd.load_part(&sums.0[o], part);
            }
        }
        for (index, weights) in weights.chunks(BETWEEN).enumerate() {
            for _ in 0..ahead.each.min(ahead.left) {
                simd.prefetch(ahead.line());
            }
            let mut now = *x;
            for r in 0..R {
                now[r] = &x[r][index * BETWEEN..][..weights.len()];
            }
            for (i, weights) in weights.iter().enumerate() {
                let mut x = [held[0][0]; R];
                for r in 0..R {
                    x[r] = simd.load_part(&now[r][i], part);
                }
                for (o, held) in held.iter_mut().enumerate() {
                    let weight = weights.part(simd, o, part);
                    for (held, x) in held.iter_mut().zip(x) {
                        *held = simd.mul_add_part(weight, x, *held);
                    }
                }
            }
        }
        for (o, held) in held.into_iter().enumerate() {
            for (held, sums) in held.into_iter().zip(&mut *sums) {
                simd.store_part(held, &mut sums.0[o], part);
            }
        }
    }
}

/// Lines of weights that are prefetched while others are multiplied, so that memory does not wait for arithmetic. That
/// helps on every processor: nothing else is read from memory then. With sixteen rows it took a seventh off the time.
struct Ahead {
    /// The next row of weights,
    row: *const u8,
    /// and where in it the next line is.
    offset: usize,
    /// Bytes of a row in the block.
    width: usize,
    /// Bytes from one row to the next.
    row_bytes: usize,
    /// Lines to prefetch at a time.
    each: usize,
    /// Lines of the block that are left.
    left: usize,
}

impl Ahead {
    /// The next line.
    #[inline(always)]
    fn line(&mut self) -> *const u8 {
        let line = self.row.wrapping_add(self.offset);
        self.left -= 1;
        self.offset += CACHE_LINE;
        if self.offset >= self.width {
            self.offset = 0;
            self.row = self.row.wrapping_add(self.row_bytes);
        }
        line
    }
}
