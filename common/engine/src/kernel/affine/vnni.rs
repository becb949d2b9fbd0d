//! Whole-number products with AVX512-VNNI, which multiplies four pairs of bytes per lane.
//!
//! Codes of 16 outputs at a time are transposed, so that a lane belongs to one output and no sum
//! goes across lanes, into a panel that all rows pass over. With few rows the panel is small and the
//! weights stream by; with many it is wide, and the sums of several rows fill the registers.

use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::super::element::FloatType;
use super::super::simd::LANES;
use super::super::target::Target;
use super::super::x86::{Avx512Vnni, transposed};
use super::activations::Activations;
use super::{AffineMatrix, Bits, Call, MAX_GROUP, for_each};
use crate::pool::current_threads;

/// Rows up to which weights stream by: more than these are short of registers.
const STREAM_ROWS: usize = 8;
/// Vectors of outputs in a panel for many rows.
const PANEL_VECTORS: usize = 4;
/// Rows computed together over it: 24 of the 32 registers hold sums.
const PANEL_ROWS: usize = 6;
/// Groups whose scales and biases are transposed at once; also the depth of a panel for many rows.
const PARAM_GROUPS: usize = LANES;
/// Least rows that are worth transposing a panel once more for, so that another thread has work.
const PART_ROWS: usize = 48;

/// One vector: four codes of each of 16 outputs, or a scale or bias of each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// What rows pass over, vectors of outputs innermost.
#[derive(Default)]
struct Panel {
    /// `[steps of four inputs, vectors]`.
    codes: Vec<Line>,
    /// `[groups, vectors]`.
    scales: Vec<Line>,
    /// `[groups, vectors]`.
    biases: Vec<Line>,
}

thread_local! {
    /// The panel that a thread works on.
    static PANEL: RefCell<Panel> = RefCell::default();
}

/// The product in the arithmetic of [`Numerics::Fast`](crate::options::Numerics::Fast).
pub(super) fn matmul(proof: Avx512Vnni, call: Call<'_>, x: &Activations) -> Vec<f32> {
    let run = |rows: Range<usize>, outputs: Range<usize>, target: Target<'_>| {
        let _: Avx512Vnni = proof;
        let task = Task { weight: call.weight, bias: call.bias, x, rows, outputs, target };
        // SAFETY: `proof` is there, so the processor has the instructions.
        PANEL.with_borrow_mut(|panel| unsafe { task.run(panel) });
    };
    let (rows, outputs) = (call.rows(), call.weight.outputs());
    if rows <= STREAM_ROWS {
        return call.by_outputs(call.share(LANES), |outputs, target| run(0..rows, outputs, target));
    }
    let mut y = vec![0.0; rows * outputs];
    let target = Target::new(&mut y, outputs);
    let width = PANEL_VECTORS * LANES;
    let panels = outputs.div_ceil(width);
    let wanted = (2 * current_threads()).div_ceil(panels);
    let parts = wanted.min(rows / PART_ROWS).max(1);
    let part_rows = rows.div_ceil(parts).next_multiple_of(PANEL_ROWS);
    for_each(panels * parts, call.parallel, |task| {
        let (panel, part) = (task % panels, task / panels);
        let rows = (part * part_rows).min(rows)..((part + 1) * part_rows).min(rows);
        run(rows, panel * width..((panel + 1) * width).min(outputs), target);
    });
    y
}

/// Some rows, some outputs.
struct Task<'a> {
    weight: AffineMatrix<'a>,
    bias: Option<&'a [f32]>,
    x: &'a Activations,
    rows: Range<usize>,
    outputs: Range<usize>,
    target: Target<'a>,
}

/// The part of the product that one panel contributes.
#[derive(Clone)]
struct Block {
    /// At most a panel's width of them.
    outputs: Range<usize>,
    /// The groups whose scales and biases are in the panel.
    params: Range<usize>,
    /// Those of them whose codes are in the panel.
    groups: Range<usize>,
}

impl Task<'_> {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    fn run(&self, panel: &mut Panel) {
        if self.rows.len() <= STREAM_ROWS {
            self.blocks::<1>(panel, MAX_GROUP / self.weight.group);
        } else {
            self.blocks::<PANEL_VECTORS>(panel, PARAM_GROUPS);
        }
    }

    /// All of the task, `V` vectors of outputs and `depth` groups at a time.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn blocks<const V: usize>(&self, panel: &mut Panel, depth: usize) {
        let line = Line([0; 64]);
        panel.codes.resize(V * depth * self.steps(), line);
        panel.scales.resize(V * PARAM_GROUPS, line);
        panel.biases.resize(V * PARAM_GROUPS, line);
        for first in self.outputs.clone().step_by(V * LANES) {
            let outputs = first..(first + V * LANES).min(self.outputs.end);
            for first in (0..self.weight.groups()).step_by(PARAM_GROUPS) {
                let params = first..(first + PARAM_GROUPS).min(self.weight.groups());
                self.fill_params::<V>(&outputs, &params, panel);
                for first in params.clone().step_by(depth) {
                    let groups = first..(first + depth).min(params.end);
                    let block = Block { outputs: outputs.clone(), params: params.clone(), groups };
                    self.fill_codes::<V>(&block, &mut panel.codes);
                    self.pass::<V>(&block, panel);
                }
            }
        }
    }

    /// Steps of four inputs in one group.
    fn steps(&self) -> usize {
        self.weight.group / 4
    }

    /// The bytes `bytes` of the rows of vector `vector` of `outputs`, each `row_bytes` long; past
    /// the last output, that one again.
    fn rows_of<'a>(
        all: &'a [u8],
        row_bytes: usize,
        outputs: &Range<usize>,
        vector: usize,
        bytes: Range<usize>,
    ) -> [&'a [u8]; LANES] {
        let mut rows: [&[u8]; LANES] = [&[]; LANES];
        for (lane, row) in rows.iter_mut().enumerate() {
            let output = (outputs.start + vector * LANES + lane).min(outputs.end - 1);
            *row = &all[output * row_bytes..][..row_bytes][bytes.clone()];
        }
        rows
    }

    /// Transposes scales and biases of `params`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn fill_params<const V: usize>(
        &self,
        outputs: &Range<usize>,
        params: &Range<usize>,
        panel: &mut Panel,
    ) {
        let float = self.weight.params;
        let bytes = params.start * float.bytes()..params.end * float.bytes();
        let row_bytes = self.weight.param_bytes();
        for (all, lines) in
            [(self.weight.scales, &mut panel.scales), (self.weight.biases, &mut panel.biases)]
        {
            for vector in 0..V {
                let rows = Self::rows_of(all, row_bytes, outputs, vector, bytes.clone());
                let mut square = [_mm512_setzero_si512(); LANES];
                for (square, row) in square.iter_mut().zip(rows) {
                    *square = _mm512_castps_si512(widened(float, row));
                }
                let lines = lines[vector..].iter_mut().step_by(V);
                // SAFETY: this function is compiled for AVX-512.
                let square = unsafe { transposed(square) };
                for (line, values) in lines.zip(square) {
                    store(line, values);
                }
            }
        }
    }

    /// Transposes the codes of `block`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn fill_codes<const V: usize>(&self, block: &Block, lines: &mut [Line]) {
        let (row_bytes, bits) = (self.weight.row_bytes(), self.weight.bits);
        let group_bytes = self.weight.group / bits.per_byte();
        let bytes = block.groups.start * group_bytes..block.groups.end * group_bytes;
        let lines = &mut lines[..V * block.groups.len() * self.steps()];
        let low = _mm512_set1_epi8(0xf);
        for vector in 0..V {
            let (codes, outputs) = (self.weight.codes, &block.outputs);
            let rows = Self::rows_of(codes, row_bytes, outputs, vector, bytes.clone());
            for (index, lines) in lines.chunks_mut(V * LANES * bits.per_byte()).enumerate() {
                let mut square = [_mm512_setzero_si512(); LANES];
                for (square, row) in square.iter_mut().zip(rows) {
                    let rest = &row[index * 64..];
                    // The same place in the next rows, which start new pages.
                    let ahead = rest.as_ptr().wrapping_add(LANES * row_bytes);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    *square = load(rest);
                }
                // SAFETY: this function is compiled for AVX-512.
                let square = unsafe { transposed(square) };
                match bits {
                    Bits::Four => {
                        // Of 32 inputs, the even ones first.
                        for (lines, words) in lines.chunks_mut(V * 8).zip(square.as_chunks::<4>().0)
                        {
                            for (step, &word) in words.iter().enumerate() {
                                let high = _mm512_srli_epi16::<4>(word);
                                store(&mut lines[vector + V * step], _mm512_and_si512(word, low));
                                store(
                                    &mut lines[vector + V * (4 + step)],
                                    _mm512_and_si512(high, low),
                                );
                            }
                        }
                    }
                    Bits::Eight => {
                        for (line, word) in lines[vector..].iter_mut().step_by(V).zip(square) {
                            store(line, word);
                        }
                    }
                }
            }
        }
    }

    /// All rows over one panel.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn pass<const V: usize>(&self, block: &Block, panel: &Panel) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            row += if V == 1 {
                // Two sums an element, since one instruction waits for the one before.
                match left {
                    1 => self.tile::<1, V, 4>(block, panel, row),
                    2 => self.tile::<2, V, 4>(block, panel, row),
                    3 => self.tile::<3, V, 2>(block, panel, row),
                    4 => self.tile::<4, V, 2>(block, panel, row),
                    5 => self.tile::<5, V, 2>(block, panel, row),
                    6 => self.tile::<6, V, 2>(block, panel, row),
                    7 => self.tile::<7, V, 2>(block, panel, row),
                    _ => self.tile::<STREAM_ROWS, V, 2>(block, panel, row),
                }
            } else {
                match left {
                    1 => self.tile::<1, V, 1>(block, panel, row),
                    2 => self.tile::<2, V, 1>(block, panel, row),
                    3 => self.tile::<3, V, 1>(block, panel, row),
                    4 => self.tile::<4, V, 1>(block, panel, row),
                    5 => self.tile::<5, V, 1>(block, panel, row),
                    _ => self.tile::<PANEL_ROWS, V, 1>(block, panel, row),
                }
            };
        }
    }

    /// Continues `R` rows of `V` vectors of outputs from `row` on, with `SPLIT` whole-number sums
    /// for each of their elements; returns `R`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
    #[inline]
    fn tile<const R: usize, const V: usize, const SPLIT: usize>(
        &self,
        block: &Block,
        panel: &Panel,
        row: usize,
    ) -> usize {
        let (first, len) = (block.outputs.start, block.outputs.len());
        let mut masks = [0; V];
        for (vector, mask) in masks.iter_mut().enumerate() {
            *mask = ((1u32 << len.saturating_sub(vector * LANES).min(LANES)) - 1) as u16;
        }
        let mut y = [[_mm512_setzero_ps(); V]; R];
        if block.groups.start > 0 {
            for r in 0..R {
                // SAFETY: tasks have different elements, and this one holds one part at a time.
                let from = unsafe { self.target.part(row + r, first, len) }.as_ptr();
                for v in 0..V {
                    // SAFETY: the mask has the lanes that are inside the part.
                    y[r][v] =
                        unsafe { _mm512_maskz_loadu_ps(masks[v], from.wrapping_add(v * LANES)) };
                }
            }
        }
        let steps = self.steps();
        let lines = panel.codes.as_chunks::<V>().0.chunks_exact(steps);
        for (group, lines) in block.groups.clone().zip(lines) {
            let mut x: [&[[i8; 4]]; R] = [&[]; R];
            for r in 0..R {
                let codes = self.x.codes(row + r).as_chunks().0;
                x[r] = &codes[group * steps..][..lines.len()];
            }
            let mut dots = [[[_mm512_setzero_si512(); V]; R]; SPLIT];
            for step in (0..lines.len() / SPLIT * SPLIT).step_by(SPLIT) {
                for split in 0..SPLIT {
                    let mut codes = [_mm512_setzero_si512(); V];
                    for v in 0..V {
                        codes[v] = read(&lines[step + split][v]);
                    }
                    for r in 0..R {
                        let four = i32::from_le_bytes(x[r][step + split].map(|code| code as u8));
                        let four = _mm512_set1_epi32(four);
                        for v in 0..V {
                            dots[split][r][v] =
                                _mm512_dpbusd_epi32(dots[split][r][v], codes[v], four);
                        }
                    }
                }
            }
            let at = V * (group - block.params.start);
            let (scales, biases) = (&panel.scales[at..][..V], &panel.biases[at..][..V]);
            for r in 0..R {
                let scale = _mm512_set1_ps(self.x.scales(row + r)[group]);
                let sum = _mm512_set1_ps(self.x.sums(row + r)[group]);
                for v in 0..V {
                    let mut dot = dots[0][r][v];
                    for other in &dots[1..] {
                        dot = _mm512_add_epi32(dot, other[r][v]);
                    }
                    let weight_scale = _mm512_castsi512_ps(read(&scales[v]));
                    let weight_bias = _mm512_castsi512_ps(read(&biases[v]));
                    let scale = _mm512_mul_ps(weight_scale, scale);
                    y[r][v] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot), y[r][v]);
                    y[r][v] = _mm512_fmadd_ps(weight_bias, sum, y[r][v]);
                }
            }
        }
        let bias = self.bias.filter(|_| block.groups.end == self.weight.groups());
        for r in 0..R {
            // SAFETY: as above.
            let to = unsafe { self.target.part(row + r, first, len) }.as_mut_ptr();
            for v in 0..V {
                let mut sum = y[r][v];
                if let Some(bias) = bias {
                    let from = bias[first..][..len].as_ptr().wrapping_add(v * LANES);
                    // SAFETY: the mask has the lanes that are inside the bias.
                    sum = _mm512_add_ps(sum, unsafe { _mm512_maskz_loadu_ps(masks[v], from) });
                }
                // SAFETY: the mask has the lanes that are inside the part.
                unsafe { _mm512_mask_storeu_ps(to.wrapping_add(v * LANES), masks[v], sum) };
            }
        }
        R
    }
}

/// The first 64 bytes; zeros past the end.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load(bytes: &[u8]) -> __m512i {
    let mask = if bytes.len() >= 64 { !0 } else { (1u64 << bytes.len()) - 1 };
    // SAFETY: the mask has the bytes that there are.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}

/// The first sixteen values of type `float`; zeros past the end.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn widened(float: FloatType, bytes: &[u8]) -> __m512 {
    let bits = load(bytes);
    match float {
        FloatType::F32 => _mm512_castsi512_ps(bits),
        FloatType::F16 => _mm512_cvtph_ps(_mm512_castsi512_si256(bits)),
        FloatType::Bf16 => {
            let wide = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn read(line: &Line) -> __m512i {
    // SAFETY: a line is an aligned vector.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(line: &mut Line, value: __m512i) {
    // SAFETY: a line is an aligned vector.
    unsafe { _mm512_store_si512(line.0.as_mut_ptr().cast(), value) }
}
