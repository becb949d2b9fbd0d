//! The integer GEMV, and the GEMM of few rows: weights are multiplied in place, as they lie in memory, which sets the
//! pace.
//!
//! A vector of codes belongs to one output, so its accumulator has to be summed across lanes. That is done for eight
//! outputs at a time, by transposing and adding, and gives vectors of eight outputs.

#![allow(clippy::needless_range_loop, reason = "sums are indexed by row and output throughout")]

use std::arch::x86_64::*;

use super::lanes::{four_sums, halves};
use super::packed::split;
use super::stored::{BYTES, DIRECT_ROWS, LANES, Stored, VECTOR_BYTES, WORDS};
use super::task::Task;
use crate::device::cpu::isa::prefetch::{AHEAD, CACHE_LINE, prefetch};

/// All of `task`, which has at most [`Stored::DIRECT_ROWS`] rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn direct<S: Stored<V, N>, const V: usize, const N: usize, const WAY: u8>(
    task: &Task<'_>,
    stored: S,
) {
    const { assert!(S::DIRECT_ROWS <= DIRECT_ROWS, "all rows are written") };
    match task.rows.len() {
        0 => {}
        1 => few::<S, V, N, 1, WAY>(task, stored),
        2 => few::<S, V, N, 2, WAY>(task, stored),
        3 => few::<S, V, N, 3, WAY>(task, stored),
        _ if S::DIRECT_ROWS == DIRECT_ROWS => few::<S, V, N, DIRECT_ROWS, WAY>(task, stored),
        rows => unreachable!("{rows} rows, of at most {}", S::DIRECT_ROWS),
    }
}

/// All of `task`, which has `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn few<S: Stored<V, N>, const V: usize, const N: usize, const R: usize, const WAY: u8>(
    task: &Task<'_>,
    stored: S,
) {
    let total = stored.groups();
    let (bytes, row_bytes) = stored.bytes();
    // Scales, and these times sums of codes, of the groups of each row.
    let mut groups_of: [(&[f32], &[f32]); R] = [(&[], &[]); R];
    for r in 0..R {
        let row = task.rows.start + r;
        groups_of[r] = (&task.x.scales(row)[..total], &task.x.sums(row)[..total]);
    }
    for first in task.outputs.clone().step_by(LANES) {
        // In the order that rows lie in, which memory is fastest in.
        let mut ahead = bytes.wrapping_add(first * row_bytes + AHEAD.max(LANES * row_bytes));
        let rows = task.eight(stored, first);
        let mut y = [_mm256_setzero_ps(); R];
        for start in (0..total).step_by(LANES) {
            let groups = start..(start + LANES).min(total);
            // SAFETY: outputs of the matrix and groups of them; this function has the instructions.
            let params = unsafe { stored.params(&rows, start, groups.len()) };
            for unit in groups.clone().step_by(S::GROUPS) {
                let sums = sums::<S, V, N, R, WAY>(task, stored, &rows, unit / S::GROUPS, ahead);
                ahead = ahead.wrapping_add(S::PIECES * stored.piece_bytes() * LANES);
                for r in 0..R {
                    for n in 0..N {
                        let mut chain = |group: usize, dot: __m256i| {
                            let (scales, sums) = groups_of[r];
                            let with = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(sums[group]));
                            y[r] = params.chain(group - start, with, dot, y[r]);
                        };
                        let (low, high) = halves(sums[r][n]);
                        if S::HALVES {
                            let group = unit + 2 * n;
                            chain(group, low);
                            if group + 1 < groups.end {
                                chain(group + 1, high);
                            }
                        } else {
                            chain(unit + n, _mm256_add_epi32(low, high));
                        }
                    }
                }
            }
        }
        for r in 0..R {
            task.write_target(task.rows.start + r, first, y[r], true);
        }
    }
}

/// Integer dot products of unit `unit`, of [`Stored::PIECES`] pieces, of each of eight outputs with as much of `R`
/// rows: of each sheaf the sums of the first four outputs, then of the last ones. Prefetches as many bytes from `ahead`
/// on.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sums<S: Stored<V, N>, const V: usize, const N: usize, const R: usize, const WAY: u8>(
    task: &Task<'_>,
    stored: S,
    rows: &[S::Row; LANES],
    unit: usize,
    ahead: *const u8,
) -> [[[__m256i; 2]; N]; R] {
    // Vectors of activations beside one of weights.
    let beside = if WAY == WORDS { 2 } else { 1 };
    let (x, stride) = task.x.lanes(task.rows.start);
    let unit_bytes = S::PIECES * V * beside * VECTOR_BYTES;
    let x = &x[unit * unit_bytes..];
    assert!(x.len() >= (R - 1) * stride + unit_bytes, "whole pieces of each row");
    let x = x.as_ptr();
    let lines = (S::PIECES * stored.piece_bytes() * LANES).div_ceil(CACHE_LINE);
    // Whether all products of a unit may be added up as words.
    let in_words = WAY == BYTES && S::PIECES * (V / N) <= S::SUMMED;
    let mut all = [[[_mm256_setzero_si256(); 2]; N]; R];
    // Written out, since the compiler makes a loop of it, whose addresses cost as much as the products.
    macro_rules! outputs {
        ($half:literal: $($lane:literal)+) => {{
            let mut sums = [[[_mm256_setzero_si256(); LANES / 2]; N]; R];
            $({
                for line in $lane * lines / LANES..($lane + 1) * lines / LANES {
                    prefetch(ahead.wrapping_add(line * CACHE_LINE));
                }
                for piece in 0..S::PIECES {
                    let (row, at) = (S::codes_of(rows[$lane]), unit * S::PIECES + piece);
                    // SAFETY: an output of the matrix and a piece of it; this function has the instructions.
                    let codes: [__m256i; V] = unsafe { stored.codes(row, at) };
                    for r in 0..R {
                        for v in 0..V {
                            let sheaf = V / N;
                            // Of a sheaf that is widened, the even words of all vectors, then the odd ones.
                            let first = piece * V * beside + v / sheaf * sheaf * beside + v % sheaf;
                            let load = |vector: usize| {
                                let at = r * stride + vector * VECTOR_BYTES;
                                // SAFETY: a whole vector, as was asserted.
                                unsafe { _mm256_loadu_si256(x.add(at).cast()) }
                            };
                            let sum = &mut sums[r][v / sheaf][$lane % (LANES / 2)];
                            *sum = match (WAY, in_words) {
                                (WORDS, _) => {
                                    // SAFETY: this function has the instructions.
                                    let [even, odd] = unsafe { split(codes[v]) };
                                    let both = add_words(*sum, even, load(first));
                                    add_words(both, odd, load(first + sheaf))
                                }
                                (_, false) => add_bytes(*sum, codes[v], load(first)),
                                (_, true) => add_as_words(*sum, codes[v], load(first)),
                            };
                        }
                    }
                }
            })+
            for r in 0..R {
                for n in 0..N {
                    if in_words {
                        for sum in &mut sums[r][n] {
                            *sum = in_lanes(*sum);
                        }
                    }
                    all[r][n][$half] = four_sums(sums[r][n]);
                }
            }
        }};
    }
    outputs!(0: 0 1 2 3);
    outputs!(1: 4 5 6 7);
    all
}

/// The accumulator `sum` and the products of words, two of which belong to a lane of 32 bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn add_words(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(codes, x))
}

/// The accumulator `sum` and the products of bytes, four of which belong to a lane of 32 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn add_bytes(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi32(sum, in_lanes(_mm256_maddubs_epi16(codes, x)))
}

/// Sums of two words that belong to a lane.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn in_lanes(words: __m256i) -> __m256i {
    _mm256_madd_epi16(words, _mm256_set1_epi16(1))
}

/// The accumulator `sum`, of words, and the products of bytes, two of which belong to a word.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn add_as_words(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
    _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x))
}
