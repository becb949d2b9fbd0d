//! Many rows: codes are transposed, widened to bytes, into a panel that all rows pass over, so
//! that a lane belongs to one output and the sums of several rows fill the registers.

#![allow(clippy::needless_range_loop, reason = "tiles are indexed by row and vector throughout")]

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::super::activations::{Activations, Planes};
use super::super::call::Call;
use super::task::{CHUNK, PARAM_GROUPS, Params, Task, padded_rows};
use crate::device::cpu::gemm::target::Target;
use crate::device::cpu::gemm::weight::{Acts, Bits, MAX_GROUP, SHORT_GROUP};
use crate::device::cpu::isa::prefetch::prefetch;
use crate::device::cpu::isa::simd::LANES;
use crate::device::cpu::isa::x86::{Avx512Vnni, Line, transposed};
use crate::device::cpu::pool::{Tasks, current_threads};

/// Vectors of outputs in a panel.
const VECTORS: usize = 4;
/// Outputs of a panel.
const OUTPUTS: usize = VECTORS * LANES;
/// Rows computed together at most: then 24 of the 32 registers hold sums.
const ROWS: usize = 6;
/// Steps of four inputs that are multiplied without looking at anything else: those of a group of 32,
const RUN: usize = 8;
/// and those of one of 16.
const SHORT_RUN: usize = 4;
/// Rows up to which panels are shallow, so that weights are prefetched without a pause.
const FEW_ROWS: usize = 8;
/// Least rows that are worth transposing a panel once more for, so that another thread has work.
const PART_ROWS: usize = 48;

/// Four codes of every output of a panel.
type Step = [Line; VECTORS];
/// What the steps of a run are multiplied with.
type Fours<const RUN: usize> = [[i8; 4]; RUN];

/// Most bytes of a panel.
pub(crate) const PANEL_BYTES: u64 = (PARAM_GROUPS * MAX_GROUP / 4 * size_of::<Step>()) as u64;

thread_local! {
    /// The panel that a thread works on.
    static PANEL: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// The product with any number of rows.
pub(super) fn matmul<'a>(
    proof: Avx512Vnni,
    call: Call<'a>,
    x: &'a Activations,
    y: Target<'a>,
) -> Tasks<'a> {
    let Call { weight, bias, .. } = call;
    let (rows, outputs) = (call.rows(), weight.outputs());
    // SAFETY: no task has a part of it yet.
    unsafe { y.zero() }; // Every panel adds to it.
    let panels = outputs.div_ceil(OUTPUTS);
    let wanted = (2 * current_threads()).div_ceil(panels.max(1));
    let parts = wanted.min(rows / PART_ROWS).max(1);
    let part_rows = rows.div_ceil(parts).next_multiple_of(ROWS);
    let run = move |index: usize| {
        let (panel, part) = (index % panels, index / panels);
        let rows = (part * part_rows).min(rows)..((part + 1) * part_rows).min(rows);
        let outputs = panel * OUTPUTS..((panel + 1) * OUTPUTS).min(outputs);
        let task = Task { weight, bias, x, rows, outputs, target: y };
        let _: Avx512Vnni = proof;
        // SAFETY: `proof` is there, so the processor has the instructions.
        PANEL.with_borrow_mut(|panel| unsafe { task.panel(panel) });
    };
    call.tasks(panels * parts, run)
}

/// What one filling of the panel holds.
struct Held<'a> {
    steps: &'a [Step],
    params: &'a Params<VECTORS>,
    groups: Range<usize>,
}

impl Task<'_> {
    /// All of the task, whose outputs are those of one panel.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn panel(&self, steps: &mut Vec<Step>) {
        let depth = match self.rows.len() <= FEW_ROWS {
            true => MAX_GROUP / self.weight.group,
            false => PARAM_GROUPS,
        };
        let chunks = (depth * self.group_bytes()).div_ceil(CHUNK);
        steps.resize(chunks * self.chunk_steps(), [Line::ZERO; VECTORS]);
        let mut params = Params::ZERO;
        let row_bytes = self.weight.row_bytes();
        let codes = self.weight.codes[self.outputs.start * row_bytes..].as_ptr();
        let mut ahead = codes.wrapping_add(OUTPUTS * row_bytes);
        for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
            let groups = first..(first + PARAM_GROUPS).min(self.weight.groups());
            self.fill_params(&self.outputs, &groups, true, &mut params);
            for first in groups.clone().step_by(depth) {
                let groups = first..(first + depth).min(groups.end);
                self.fill_codes(&groups, steps, &mut ahead);
                self.pass(&Held { steps, params: &params, groups });
            }
        }
    }

    /// All rows over what is held.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn pass(&self, held: &Held<'_>) {
        match self.weight.group {
            SHORT_GROUP => self.rows::<SHORT_RUN>(held),
            _ => self.rows::<RUN>(held),
        }
    }

    /// The same, of groups that are whole runs.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn rows<const RUN: usize>(&self, held: &Held<'_>) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            // As even as can be: two tiles of four rows rather than of six and two.
            row += match left.div_ceil(left.div_ceil(ROWS)) {
                1 => self.tile::<1, RUN>(held, row),
                2 => self.tile::<2, RUN>(held, row),
                3 => self.tile::<3, RUN>(held, row),
                4 => self.tile::<4, RUN>(held, row),
                5 => self.tile::<5, RUN>(held, row),
                _ => self.tile::<ROWS, RUN>(held, row),
            };
        }
    }

    /// Steps of four inputs in one chunk.
    fn chunk_steps(&self) -> usize {
        CHUNK * self.weight.bits.per_byte() / 4
    }

    /// Transposes the codes of `groups`; outputs past the end are zero. Asks memory for as many
    /// bytes from `ahead` on, and moves it past them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn fill_codes(&self, groups: &Range<usize>, steps: &mut [Step], ahead: &mut *const u8) {
        let row_bytes = self.weight.row_bytes();
        let bytes = groups.start * self.group_bytes()..groups.end * self.group_bytes();
        for vector in 0..VECTORS {
            let first = self.outputs.start + vector * LANES;
            let codes = self.weight.codes.get(first * row_bytes..).unwrap_or(&[]);
            let steps = steps.chunks_exact_mut(self.chunk_steps());
            for (at, steps) in bytes.clone().step_by(CHUNK).zip(steps) {
                for _ in 0..LANES {
                    // In the order that the codes lie in: memory is fastest so.
                    prefetch(*ahead);
                    *ahead = ahead.wrapping_add(CHUNK);
                }
                if codes.len() >= LANES * row_bytes && at + CHUNK <= row_bytes {
                    // SAFETY: whole chunks of whole rows by the condition.
                    unsafe { self.fill_chunk(codes[at..].as_ptr(), row_bytes, steps, vector) };
                } else {
                    let padded: [[Line; 1]; LANES] = padded_rows(codes, row_bytes, at);
                    // SAFETY: the copy is as long as that.
                    unsafe { self.fill_chunk(padded.as_ptr().cast(), CHUNK, steps, vector) };
                }
            }
        }
    }

    /// Transposes [`CHUNK`] bytes of each of 16 outputs into vector `vector` of `steps`.
    ///
    /// # Safety
    /// The bytes lie at `from` and after it, `stride` bytes apart.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    unsafe fn fill_chunk(&self, from: *const u8, stride: usize, steps: &mut [Step], vector: usize) {
        let mut square = [_mm512_setzero_si512(); LANES];
        for (lane, square) in square.iter_mut().enumerate() {
            let from = from.wrapping_add(lane * stride);
            // SAFETY: the caller's promise.
            *square = unsafe { _mm512_loadu_si512(from.cast()) };
        }
        // SAFETY: this function has the instructions.
        let square = unsafe { transposed(square) };
        match self.weight.bits {
            Bits::Four => {
                // Of 32 inputs, the even ones first.
                let low = _mm512_set1_epi8(0xf);
                for (words, steps) in
                    square.as_chunks::<4>().0.iter().zip(steps.as_chunks_mut::<8>().0)
                {
                    for (step, &word) in words.iter().enumerate() {
                        steps[step][vector].write(_mm512_and_si512(word, low));
                        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(word), low);
                        steps[4 + step][vector].write(high);
                    }
                }
            }
            Bits::Six | Bits::Eight => {
                for (step, word) in steps.iter_mut().zip(square) {
                    step[vector].write(word);
                }
            }
        }
    }

    /// Continues the chains of `R` rows from `row` on with what is held; returns `R`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn tile<const R: usize, const RUN: usize>(&self, held: &Held<'_>, row: usize) -> usize {
        let mut y = [[_mm512_setzero_ps(); VECTORS]; R];
        if held.groups.start > 0 {
            for r in 0..R {
                for v in 0..VECTORS {
                    y[r][v] = self.read_target(row + r, &self.outputs, v);
                }
            }
        }
        let runs = self.weight.group / (4 * RUN);
        let steps = held.steps.as_chunks::<RUN>().0.chunks_exact(runs);
        for (group, steps) in held.groups.clone().zip(steps) {
            let mut dots = [[_mm512_setzero_si512(); VECTORS]; R];
            let mut planes: [[&[Fours<RUN>]; R]; 2] = [[&[]; R]; 2];
            for r in 0..R {
                let Planes { high, low } = self.x.planes(row + r);
                for (plane, to) in [high, low].into_iter().zip(&mut planes) {
                    to[r] = &plane.as_chunks().0.as_chunks().0[group * runs..][..runs];
                }
            }
            let [high, low] = planes;
            // Activations of a byte have no upper ones.
            if self.weight.acts == Acts::Words {
                multiply(steps, high, &mut dots);
                // What these gave counts 256 times.
                for r in 0..R {
                    for v in 0..VECTORS {
                        dots[r][v] = _mm512_slli_epi32::<8>(dots[r][v]);
                    }
                }
            }
            multiply(steps, low, &mut dots);
            let at = group % PARAM_GROUPS;
            for r in 0..R {
                let scale = _mm512_set1_ps(self.x.scales(row + r)[group]);
                let sum = _mm512_set1_ps(self.x.sums(row + r)[group]);
                for v in 0..VECTORS {
                    y[r][v] = held.params.chain((at, v), (scale, sum), dots[r][v], y[r][v]);
                }
            }
        }
        let finished = held.groups.end == self.weight.groups();
        for r in 0..R {
            for v in 0..VECTORS {
                self.write_target(row + r, &self.outputs, v, y[r][v], finished);
            }
        }
        R
    }
}

/// Adds the products of the codes of a group and one plane `x` of the activations of `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
#[inline]
fn multiply<const R: usize, const RUN: usize>(
    steps: &[[Step; RUN]],
    x: [&[Fours<RUN>]; R],
    dots: &mut [[__m512i; VECTORS]; R],
) {
    for (run, steps) in steps.iter().enumerate() {
        let mut fours = [&[[0; 4]; RUN]; R];
        for r in 0..R {
            fours[r] = &x[r][run];
        }
        for (at, step) in steps.iter().enumerate() {
            let mut codes = [_mm512_setzero_si512(); VECTORS];
            for v in 0..VECTORS {
                codes[v] = step[v].read();
            }
            for r in 0..R {
                let four = i32::from_le_bytes(fours[r][at].map(|code| code as u8));
                let four = _mm512_set1_epi32(four);
                for v in 0..VECTORS {
                    dots[r][v] = _mm512_dpbusd_epi32(dots[r][v], codes[v], four);
                }
            }
        }
    }
}
