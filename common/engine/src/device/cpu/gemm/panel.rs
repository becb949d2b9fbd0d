//! The GEMM of prefill with bf16 weights, on processors that multiply pairs of bf16 (AVX512-BF16).
//!
//! An activation is `high = bf16(x)`, or the sum of that and of `low = bf16(x - high)`, each rounded
//! to nearest, ties to even: one plane or two, as [`Precision`] says. Every element of the result is
//! one chain over the inputs: `sum = dpbf16(sum, w[2i..2i + 2], high[2i..2i + 2])`, then the same
//! with `low` if there is one, for `i` in order from a sum of zero, an odd last input paired with
//! zero, then `+ bias`. Nothing else enters it: neither other rows nor tiles, blocks or threads.
//!
//! Weights are packed, transposed, some outputs and some inputs at a time, into a panel that lies in the
//! second-level cache while all rows pass over it, a register tile at a time.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use crate::device::cpu::buffer::Uninit;
use crate::device::cpu::gemm::product::{Form, Gemm, Prepared, Scratch};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Matrix, Weight, WeightKind};
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::tier::Tier;
use crate::device::cpu::isa::x86::pairs::{round_pairs, rounding_errors};
use crate::device::cpu::isa::x86::{Avx512, Avx512Bf16, transposed};
use crate::device::cpu::pool::{Tasks, current_threads, for_each_mut};
use crate::options::Precision;

/// Vectors of outputs in a panel.
const VECTORS: usize = 4;
/// Outputs of a panel.
const OUTPUTS: usize = VECTORS * LANES;
/// Rows of a register tile: with `VECTORS` they fill 24 of the 32 registers with accumulators.
const ROWS: usize = 6;
/// Pairs of inputs in a panel: 64 KiB of weights.
const BLOCK: usize = 64;
/// How far ahead in each row weights are prefetched, in bytes: what is read while about a thousand
/// cycles of work pass. Sixteen rows at once are more than the hardware follows.
const ROW_AHEAD: usize = 512;
/// Least rows that are worth transposing a panel once more for, so that another thread has work.
const PART_ROWS: usize = 48;

/// One pair of inputs of all outputs of a panel; the earlier input is in the lower half.
type Column = [u32; OUTPUTS];

thread_local! {
    /// The panel that a thread works on.
    static PANEL: RefCell<Vec<Column>> = const { RefCell::new(Vec::new()) };
}

/// The GEMM of rows of prefill, rounded to this precision, with weights in bf16.
pub(crate) struct Pairs {
    pub(crate) precision: Precision,
}

// SAFETY: the result is set to zero before any task adds to it.
unsafe impl Gemm for Pairs {
    fn form(&self, _: WeightKind) -> Form {
        Form::Bf16Pairs { planes: self.precision.planes() }
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
        let (proof, precision) = (proof(tier), self.precision);
        let (rows, outputs, parallel) = weight.check(x.values(), bias);
        let x = x.made::<Activations>(self.form(weight.kind()));
        let weight = weight.float();
        // SAFETY: no task has a part of it yet.
        unsafe { y.zero() }; // Every panel adds to it.
        let panels = outputs.div_ceil(OUTPUTS);
        let parts = row_parts(rows, panels);
        let part_rows = rows.div_ceil(parts).next_multiple_of(ROWS);
        let run = move |task: usize| {
            let (panel, part) = (task % panels, task / panels);
            let first = panel * OUTPUTS;
            let task = Task {
                weight,
                bias,
                x,
                outputs: first..(first + OUTPUTS).min(outputs),
                rows: (part * part_rows).min(rows)..((part + 1) * part_rows).min(rows),
                target: y,
            };
            PANEL.with_borrow_mut(|panel| {
                let _: Avx512Bf16 = proof;
                // SAFETY: `proof` is there, so the processor has the instructions.
                unsafe {
                    match precision {
                        Precision::Bf16 | Precision::Bf16Both => task.run::<1>(panel),
                        Precision::Bf16x2 => task.run::<2>(panel),
                    }
                }
            });
        };
        Tasks::new(panels * parts, weight.bytes.len(), parallel, run)
    }

    fn scratch(&self, inputs: u64, rows: u64) -> Scratch {
        // Two planes.
        let row = inputs.saturating_add(4 * LANES as u64).saturating_mul(size_of::<u32>() as u64);
        let thread = (BLOCK * size_of::<Column>()) as u64;
        Scratch { activations: row.saturating_mul(rows), thread, buffers: "bf16 panel" }
    }
}

/// Proof of the instructions.
fn proof(tier: Tier) -> Avx512Bf16 {
    let bf16 = tier.avx512().and_then(Avx512::bf16);
    bf16.expect("the table gives this kernel to processors that multiply pairs of bf16")
}

/// How many parts to cut the rows into, so that few panels still employ all threads.
fn row_parts(rows: usize, panels: usize) -> usize {
    let wanted = (2 * current_threads()).div_ceil(panels.max(1));
    wanted.min(rows / PART_ROWS).max(1)
}

/// Rows of activations as pairs of bf16, `[row, plane, pair]`, each padded with zeros to whole
/// vectors and a vector more, so that rows of a power of two do not compete for the same places of
/// the cache.
struct Activations {
    pairs: Vec<u32>,
    stride: usize,
    planes: usize,
}

impl Activations {
    fn split(
        proof: Avx512Bf16,
        precision: Precision,
        x: &[f32],
        inputs: usize,
        parallel: bool,
    ) -> Activations {
        let stride = inputs.div_ceil(2).next_multiple_of(LANES) + LANES;
        let planes = precision.planes();
        let mut pairs = vec![0; x.len() / inputs * planes * stride];
        let split = |(pairs, x): (&mut [u32], &[f32])| {
            let _: Avx512Bf16 = proof;
            let (high, low) = pairs.split_at_mut(stride);
            // SAFETY: `proof` is there, so the processor has the instructions.
            unsafe { split_row(x, high, low) }
        };
        let row = planes * stride;
        if parallel {
            let blocks = pairs.chunks_mut(ROWS * row).zip(x.chunks(ROWS * inputs));
            for_each_mut(&mut blocks.collect::<Vec<_>>(), |_, (pairs, x)| {
                pairs.chunks_exact_mut(row).zip(x.chunks_exact(inputs)).for_each(split);
            });
        } else {
            pairs.chunks_exact_mut(row).zip(x.chunks_exact(inputs)).for_each(split);
        }
        Activations { pairs, stride, planes }
    }

    /// The pairs of a plane of a row from one on.
    fn pairs(&self, row: usize, plane: usize, first: usize) -> &[u32] {
        &self.pairs[(row * self.planes + plane) * self.stride + first..]
    }
}

/// Rounds `x` into `high`, and what is left of it into `low` unless that is empty; both have room
/// for whole vectors of pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_row(x: &[f32], high: &mut [u32], low: &mut [u32]) {
    let mut low = low.as_chunks_mut::<LANES>().0.iter_mut();
    for (x, high) in x.chunks(2 * LANES).zip(high.as_chunks_mut::<LANES>().0) {
        let mask = u32::MAX >> (2 * LANES - x.len());
        // SAFETY: masked loads touch the elements of `x` alone; the stores fill arrays.
        unsafe {
            let a = _mm512_maskz_loadu_ps(mask as u16, x.as_ptr());
            let b = _mm512_maskz_loadu_ps((mask >> LANES) as u16, x.as_ptr().wrapping_add(LANES));
            let rounded = round_pairs(a, b);
            _mm512_storeu_si512(high.as_mut_ptr().cast(), rounded);
            if let Some(low) = low.next() {
                let left = rounding_errors(a, b, rounded);
                _mm512_storeu_si512(low.as_mut_ptr().cast(), round_pairs(left.0, left.1));
            }
        }
    }
}

/// One task of the GEMM: some rows with the outputs of one panel.
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
    fn run<const P: usize>(&self, panel: &mut Vec<Column>) {
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
                    1 => self.tile::<1, P>(panel, row, &block),
                    2 => self.tile::<2, P>(panel, row, &block),
                    3 => self.tile::<3, P>(panel, row, &block),
                    4 => self.tile::<4, P>(panel, row, &block),
                    5 => self.tile::<5, P>(panel, row, &block),
                    _ => self.tile::<ROWS, P>(panel, row, &block),
                };
            }
            first = block.end;
        }
    }

    /// Packs `block` of the weights' pairs into the panel, transposed; outputs past the last are zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn fill(&self, block: &Range<usize>, panel: &mut [Column]) {
        let row_bytes = self.weight.row_bytes();
        let len = (block.len() * 4).min(row_bytes - block.start * 4);
        for vector in 0..VECTORS {
            let first = self.outputs.start + vector * LANES;
            let present = self.outputs.end.saturating_sub(first).min(LANES);
            let rows = &self.weight.bytes[(first * row_bytes).min(self.weight.bytes.len())..];
            for (index, columns) in panel[..block.len()].chunks_mut(LANES).enumerate() {
                let start = block.start * 4 + index * 64;
                let bytes = (len - index * 64).min(64);
                if let Ok(columns) = columns.try_into()
                    && (present, bytes) == (LANES, 64)
                {
                    let rows = &rows[start..][..(LANES - 1) * row_bytes + 64];
                    // SAFETY: the slice has all the vectors that are read.
                    unsafe { transpose(rows.as_ptr(), row_bytes, columns, vector) }
                    continue;
                }
                let mut padded = [[0; 64]; LANES];
                for (row, padded) in padded[..present].iter_mut().enumerate() {
                    padded[..bytes].copy_from_slice(&rows[row * row_bytes + start..][..bytes]);
                }
                let mut square = [[0; OUTPUTS]; LANES];
                // SAFETY: the array has sixteen rows of 64 bytes.
                unsafe { transpose(padded.as_ptr().cast(), 64, &mut square, vector) }
                for (to, from) in columns.iter_mut().zip(square) {
                    to[vector * LANES..][..LANES].copy_from_slice(&from[vector * LANES..][..LANES]);
                }
            }
        }
    }

    /// The micro-kernel: adds the products of one panel to the accumulators of its outputs and of `R` rows, each of `P`
    /// planes, from `row` on; returns `R`. Between panels, the accumulators lie in the result.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    #[inline]
    fn tile<const R: usize, const P: usize>(
        &self,
        panel: &[Column],
        row: usize,
        block: &Range<usize>,
    ) -> usize {
        let mut x: [[&[u32]; P]; R] = [[&[]; P]; R];
        for (r, x) in x.iter_mut().enumerate() {
            for (plane, x) in x.iter_mut().enumerate() {
                *x = &self.x.pairs(row + r, plane, block.start)[..panel.len()];
            }
        }
        let (first, len) = (self.outputs.start, self.outputs.len());
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; R];
        if block.start > 0 {
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: each task has other elements, and this one
                // holds one part at a time; the panels before this one wrote all of it.
                let y = unsafe { self.target.written(row + r, first, len) };
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = load_vector(y, v);
                }
            }
        }
        for (i, column) in panel.iter().enumerate() {
            let mut w = [_mm512_setzero_si512(); VECTORS];
            for v in 0..VECTORS {
                // SAFETY: the slice is one vector long.
                w[v] = unsafe { _mm512_loadu_si512(column[v * LANES..][..LANES].as_ptr().cast()) };
            }
            for r in 0..R {
                for x in x[r] {
                    let x = bf16(_mm512_set1_epi32(x[i] as i32));
                    for v in 0..VECTORS {
                        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], bf16(w[v]), x);
                    }
                }
            }
        }
        let bias = self.bias.filter(|_| block.end == self.weight.inputs.div_ceil(2));
        for (r, sums) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            let y = unsafe { self.target.part(row + r, first, len) };
            for (v, sum) in sums.into_iter().enumerate() {
                let sum = match bias {
                    Some(bias) => _mm512_add_ps(sum, load_vector(&bias[first..][..len], v)),
                    None => sum,
                };
                store_vector(sum, y, v);
            }
        }
        R
    }
}

/// Which lanes of `vector` a row of `len` elements has.
#[inline]
fn mask(len: usize, vector: usize) -> u16 {
    let present = len.saturating_sub(vector * LANES).min(LANES);
    ((1u32 << present) - 1) as u16
}

/// The elements that `values` has of `vector`; the others are zero.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_vector(values: &[f32], vector: usize) -> __m512 {
    let from = values.as_ptr().wrapping_add(vector * LANES);
    // SAFETY: a masked load touches the elements of `values` alone.
    unsafe { _mm512_maskz_loadu_ps(mask(values.len(), vector), from) }
}

/// Writes the elements that `values` has of `vector`.
#[target_feature(enable = "avx512f")]
#[inline]
fn store_vector(sum: __m512, values: &mut Uninit, vector: usize) {
    let to = values.as_mut_ptr().cast::<f32>().wrapping_add(vector * LANES);
    // SAFETY: a masked store touches the elements of `values` alone.
    unsafe { _mm512_mask_storeu_ps(to, mask(values.len(), vector), sum) }
}

/// The same bits as pairs of bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn bf16(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(pairs) }
}

/// Rows become columns: lane `j` of row `i` goes to lane `i` of `vector` of column `j`. Row `i`
/// starts `i * stride` bytes past `rows`.
///
/// # Safety
/// All sixteen rows can be read. The processor has AVX-512.
#[target_feature(enable = "avx512f")]
#[inline(never)] // Inlined, its addresses would be kept and counted up in memory one by one.
unsafe fn transpose(rows: *const u8, stride: usize, columns: &mut [Column; LANES], vector: usize) {
    let mut square = [_mm512_setzero_si512(); LANES];
    for (i, vector) in square.iter_mut().enumerate() {
        let row = rows.wrapping_add(i * stride);
        // SAFETY: by the caller's promise.
        *vector = unsafe { _mm512_loadu_si512(row.cast()) };
        _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(ROW_AHEAD).cast());
    }
    // SAFETY: the processor has AVX-512 by the caller's promise.
    let square = unsafe { transposed(square) };
    for (column, pairs) in columns.iter_mut().zip(square) {
        let to = column[vector * LANES..][..LANES].as_mut_ptr();
        // SAFETY: the slice is one vector long.
        unsafe { _mm512_storeu_si512(to.cast(), pairs) }
    }
}
