//! The integer GEMV, and the GEMM of few rows, on processors with AVX512-VNNI: weights are multiplied in place, a
//! vector has codes of two outputs, and one instruction multiplies bytes and accumulates.
//!
//! Activations of words are two planes of bytes, whose products are added up as whole numbers, which gives the sums
//! that words give. Accumulators are transposed and added for 16 outputs at a time.

#![allow(clippy::needless_range_loop, reason = "sums are indexed by pair and sheaf throughout")]

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::activations::Planes;
use super::super::vnni::direct::FEW_ROWS;
use super::stored::{LANES, Stored, VECTOR_BYTES, WideParams};
use super::task::Task;
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE, prefetch, prefetch_near};
use crate::device::cpu::isa::x86::Avx512Vnni;

/// Outputs that are computed together.
pub(super) const OUTPUTS: usize = 16;
/// Rows that are few: as many as beside affine matrices, since activations that are prepared for one kernel are given
/// to the other.
pub(super) const ROWS: usize = FEW_ROWS;
/// Vectors that have two outputs each: of every eight outputs those that are four apart.
const PAIRS: usize = OUTPUTS / 2;
/// Vectors whose accumulators are transposed at once.
const QUAD: usize = 4;
/// How far ahead in each row codes are prefetched once more, into the first-level cache.
const NEAR: usize = 3 * CACHE_LINE;
/// Pieces of a unit at most.
const PIECES: usize = 4;

/// All of `task`, which has at most [`ROWS`] rows, activations as `PLANES` of bytes.
pub(super) fn direct<S: Stored<V, N>, const V: usize, const N: usize, const PLANES: usize>(
    proof: Avx512Vnni,
    task: &Task<'_>,
    stored: S,
) {
    const {
        assert!(S::PIECES <= PIECES, "all of a unit");
        assert!(!S::EVENS_FIRST || (V == 2 && N == 1), "even ones and odd ones");
    }
    let _: Avx512Vnni = proof;
    for first in task.outputs.clone().step_by(OUTPUTS) {
        // SAFETY: `proof` is there, so the processor has the instructions.
        unsafe { outputs::<S, V, N, PLANES>(task, stored, first) };
    }
}

/// Where 16 outputs lie, and their scales and biases in some groups.
struct Outputs<R> {
    eights: [[R; LANES]; 2],
    /// Where the codes of those of every vector begin.
    pairs: [[*const u8; 2]; PAIRS],
    params: WideParams,
}

/// The activations of one row.
struct Operands<'a> {
    planes: Planes<'a>,
    /// Scales, and these times sums of codes, of all groups.
    scales: &'a [f32],
    sums: &'a [f32],
}

/// The 16 outputs from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn outputs<S: Stored<V, N>, const V: usize, const N: usize, const PLANES: usize>(
    task: &Task<'_>,
    stored: S,
    first: usize,
) {
    let (bytes, row_bytes) = stored.bytes();
    let eights = [task.eight(stored, first), task.eight(stored, first + LANES)];
    let mut pairs = [[bytes; 2]; PAIRS];
    for (pair, both) in pairs.iter_mut().enumerate() {
        let eight = &eights[pair / QUAD];
        *both = [S::codes_of(eight[pair % QUAD]), S::codes_of(eight[QUAD + pair % QUAD])];
    }
    let mut all = Outputs { eights, pairs, params: WideParams::ZERO };
    // In the order that rows lie in, which memory is fastest in.
    let mut ahead = bytes.wrapping_add(first * row_bytes + AHEAD.max(OUTPUTS * row_bytes));
    let total = stored.groups();
    // Whole outputs that lie between these and those whose codes are prefetched.
    let behind = AHEAD.max(OUTPUTS * row_bytes).div_ceil(OUTPUTS * row_bytes) * OUTPUTS;
    let mut y = [_mm512_setzero_ps(); ROWS];
    for start in (0..total).step_by(LANES) {
        let groups = start..(start + LANES).min(total);
        stored.ask_params(first + behind, OUTPUTS, &groups);
        // SAFETY: outputs of the matrix and groups of them; this function has the instructions.
        unsafe { stored.wide_params(&all.eights, start, groups.len(), &mut all.params) };
        for (row, y) in task.rows.clone().zip(&mut y) {
            let (scales, sums) = (task.x.scales(row), task.x.sums(row));
            let x = Operands { planes: task.x.planes(row), scales, sums };
            *y = match row == task.rows.start {
                true => chains::<S, V, N, PLANES, true>(stored, &all, &groups, &x, ahead, *y),
                false => chains::<S, V, N, PLANES, false>(stored, &all, &groups, &x, ahead, *y),
            };
        }
        let units = groups.len().div_ceil(S::GROUPS);
        ahead = ahead.wrapping_add(units * S::PIECES * stored.piece_bytes() * OUTPUTS);
    }
    for (row, y) in task.rows.clone().zip(y) {
        write(task, row, first, y);
    }
}

/// Writes the outputs from `first` on, with the layer's bias.
#[target_feature(enable = "avx512f")]
#[inline]
fn write(task: &Task<'_>, row: usize, first: usize, mut y: __m512) {
    let count = OUTPUTS.min(task.outputs.end - first);
    let mask = ((1u32 << count) - 1) as u16;
    if let Some(bias) = task.bias {
        // SAFETY: the mask has the lanes that are inside the bias.
        y = _mm512_add_ps(y, unsafe {
            _mm512_maskz_loadu_ps(mask, bias[first..][..count].as_ptr())
        });
    }
    // SAFETY: no other task has these elements, and this one holds one part at a time; the mask has the lanes inside of
    // it.
    unsafe {
        let part = task.target.part(row, first, count);
        _mm512_mask_storeu_ps(part.as_mut_ptr().cast(), mask, y);
    }
}

/// The micro-kernel: adds the products of some groups to the accumulators `y` of 16 outputs. If it is to `ASK`,
/// prefetches as many bytes from `ahead` on.
///
/// Products of a unit are those of each sheaf with the lower halves of its vectors and with the upper ones.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline(never)]
fn chains<S: Stored<V, N>, const V: usize, const N: usize, const PLANES: usize, const ASK: bool>(
    stored: S,
    all: &Outputs<S::Row>,
    groups: &Range<usize>,
    x: &Operands<'_>,
    mut ahead: *const u8,
    mut y: __m512,
) -> __m512 {
    let bytes = S::PIECES * stored.piece_bytes(); // Of a unit of an output.
    let lines = (bytes * OUTPUTS).div_ceil(CACHE_LINE);
    for unit in groups.clone().step_by(S::GROUPS) {
        let high = operands::<S, V, N>(x.planes.high, unit / S::GROUPS);
        let low = operands::<S, V, N>(x.planes.low, unit / S::GROUPS);
        // Those that a unit begins, so that each is prefetched once.
        let near = unit / S::GROUPS * bytes + NEAR;
        let near = near / CACHE_LINE..(near + bytes) / CACHE_LINE;
        let mut quads = [[_mm512_setzero_si512(); 2]; N];
        // Written out, since the compiler makes a loop of it, with accumulators in memory.
        macro_rules! quad {
            ($quad:literal: $($at:literal)+) => {{
                let mut sums = [[_mm512_setzero_si512(); QUAD]; N];
                $({
                    let pair = $quad * QUAD + $at;
                    if ASK {
                        for line in near.clone() {
                            for row in all.pairs[pair] {
                                prefetch_near(row.wrapping_add(line * CACHE_LINE));
                            }
                        }
                        for line in pair * lines / PAIRS..(pair + 1) * lines / PAIRS {
                            prefetch(ahead.wrapping_add(line * CACHE_LINE));
                        }
                    }
                    let mut codes = [[_mm512_setzero_si512(); V]; PIECES];
                    for piece in 0..S::PIECES {
                        let at = unit / S::GROUPS * S::PIECES + piece;
                        // SAFETY: outputs of the matrix and a piece of them; this function has the instructions.
                        codes[piece] = unsafe { stored.codes(all.pairs[pair], at) };
                    }
                    for n in 0..N {
                        let mut sum = _mm512_setzero_si512();
                        if PLANES == 2 {
                            for piece in 0..S::PIECES {
                                for v in n * (V / N)..(n + 1) * (V / N) {
                                    sum = _mm512_dpbusd_epi32(sum, codes[piece][v], high[piece][v]);
                                }
                            }
                            sum = _mm512_slli_epi32::<8>(sum);
                        }
                        for piece in 0..S::PIECES {
                            for v in n * (V / N)..(n + 1) * (V / N) {
                                sum = _mm512_dpbusd_epi32(sum, codes[piece][v], low[piece][v]);
                            }
                        }
                        sums[n][$at] = sum;
                    }
                })+
                for n in 0..N {
                    quads[n][$quad] = quarter_sums(sums[n]);
                }
            }};
        }
        quad!(0: 0 1 2 3);
        quad!(1: 0 1 2 3);
        if ASK {
            ahead = ahead.wrapping_add(bytes * OUTPUTS);
        }
        macro_rules! chain {
            ($group:expr, $dot:expr) => {{
                let (group, at): (usize, usize) = ($group, $group - groups.start);
                let weight_scale = _mm512_castsi512_ps(all.params.scales[at].read());
                let weight_bias = _mm512_castsi512_ps(all.params.biases[at].read());
                let scale = _mm512_mul_ps(weight_scale, _mm512_set1_ps(x.scales[group]));
                y = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps($dot), y);
                y = _mm512_fmadd_ps(weight_bias, _mm512_set1_ps(x.sums[group]), y);
            }};
        }
        for n in 0..N {
            // Quarters of both: the lower halves of outputs 0..4, the upper ones, the lower ones of 4..8, and so on.
            let [first, last] = quads[n];
            let low = _mm512_shuffle_i32x4::<0x88>(first, last);
            let high = _mm512_shuffle_i32x4::<0xdd>(first, last);
            if S::HALVES {
                let group = unit + 2 * n;
                chain!(group, low);
                if group + 1 < groups.end {
                    chain!(group + 1, high);
                }
            } else {
                chain!(unit + n, _mm512_add_epi32(low, high));
            }
        }
    }
    y
}

/// What the vectors of codes of each piece of a unit are multiplied with, of one plane of activations: the same for
/// both outputs.
#[target_feature(enable = "avx512f")]
#[inline]
fn operands<S: Stored<V, N>, const V: usize, const N: usize>(
    plane: &[i8],
    unit: usize,
) -> [[__m512i; V]; PIECES] {
    let x = &plane[unit * S::PIECES * S::IN_PIECE..][..S::PIECES * S::IN_PIECE];
    let mut all = [[_mm512_setzero_si512(); V]; PIECES];
    for piece in 0..S::PIECES {
        let x = x[piece * S::IN_PIECE..].as_ptr();
        if S::EVENS_FIRST {
            // Of every 32 the 16 even ones come first.
            // SAFETY: whole pieces are two vectors of 32 bytes.
            let both = unsafe { _mm512_loadu_si512(x.cast()) };
            all[piece][0] = _mm512_shuffle_i32x4::<0x88>(both, both);
            all[piece][1] = _mm512_shuffle_i32x4::<0xdd>(both, both);
        } else {
            for v in 0..V {
                // SAFETY: whole pieces are so many vectors.
                let x = unsafe { _mm256_loadu_si256(x.wrapping_add(v * VECTOR_BYTES).cast()) };
                all[piece][v] = _mm512_broadcast_i64x4(x);
            }
        }
    }
    all
}

/// Sums of the four lanes of every quarter: lane `i` of a quarter is that of `sums[i]`.
#[target_feature(enable = "avx512f")]
#[inline]
fn quarter_sums(sums: [__m512i; QUAD]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (a, b) = (pair(sums[0], sums[1]), pair(sums[2], sums[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
}
