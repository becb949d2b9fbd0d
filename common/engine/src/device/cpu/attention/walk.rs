//! Attention of one tile of queries over some spans of its past, with one head of the cache: scores, their softmax, and
//! weighted values, span by span.

use std::ops::Range;

use cake_checkpoint::KvDtype;

use super::call::{Attend, SPAN};
use super::state::State;
use super::stored::{Codes, Stored};
use crate::device::cpu::buffer::kept;
use crate::device::cpu::element::{F16, F32};
use crate::device::cpu::exponential::{cap, exp};
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

/// Queries of a register tile; queries are padded to whole quads.
const QUAD: usize = 4;
/// Positions whose values are widened at once: 16 KiB of them for heads of 64 elements.
const STEP: usize = 64;
/// Vectors of scores in a span.
const SPAN_VECTORS: usize = SPAN / LANES;

/// A thread's buffers, kept between tiles.
#[derive(Default)]
pub(super) struct Scratch {
    /// `[quads, head_dim]`.
    queries: Vec<[f32; QUAD]>,
    /// `[quads * QUAD, SPAN_VECTORS]`: scores, then weights.
    scores: Vec<[f32; LANES]>,
    /// Keys of sixteen positions, transposed: `[head_dim, position]`, padded to whole vectors.
    keys: Vec<[f32; LANES]>,
    /// `[STEP, vectors]`.
    values: Vec<[f32; LANES]>,
    /// Of the span at hand.
    state: State,
}

/// An upper bound of the f32 that [`Scratch`] holds for a tile, its state aside.
pub(super) fn scratch_floats(queries: u64, head_dim: u64) -> u64 {
    let padded = head_dim.next_multiple_of(LANES as u64);
    let per_query = (head_dim + SPAN as u64).saturating_mul(queries.next_multiple_of(QUAD as u64));
    let cached = padded.saturating_mul((LANES + STEP) as u64);
    let offsets = 2 * SPAN as u64; // One word of eight bytes per position.
    per_query.saturating_add(cached).saturating_add(offsets)
}

/// The task: afterwards, `state` is that of the tile's queries over `spans`.
///
/// Queries are numbered row by row, and in a row by query head.
pub(super) struct Walk<'a> {
    pub(super) attend: &'a Attend<'a>,
    /// Rows of the tile: consecutive positions of one sequence.
    pub(super) rows: Range<usize>,
    pub(super) kv_head: usize,
    /// `[rows, heads, head_dim]` of all rows, not of the tile alone.
    pub(super) q: &'a [f32],
    pub(super) spans: Range<usize>,
    pub(super) state: &'a mut State,
    pub(super) scratch: &'a mut Scratch,
}

impl Kernel for Walk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (group, head_dim) = (self.attend.group(), self.attend.kv.head_dim);
        let vectors = head_dim.div_ceil(LANES);
        let count = self.rows.len() * group;
        let quads = count.div_ceil(QUAD);
        let Scratch { queries, scores, keys, values, state } = self.scratch;
        queries.clear();
        let queries = kept(queries, quads * head_dim, [0.0; QUAD]);
        for query in 0..count {
            let (row, head) = (self.rows.start + query / group, query % group);
            let head = row * self.attend.spec.heads + self.kv_head * group + head;
            let quad = &mut queries[query / QUAD * head_dim..];
            for (to, from) in quad.iter_mut().zip(&self.q[head * head_dim..][..head_dim]) {
                to[query % QUAD] = *from;
            }
        }
        let scores = kept(scores, quads * QUAD * SPAN_VECTORS, [0.0; LANES]);
        let keys = kept(keys, vectors * LANES, [0.0; LANES]);
        let values = kept(values, STEP * vectors, [0.0; LANES]);
        self.state.reset(count, vectors);

        for span in self.spans {
            let start = span * SPAN;
            let first = self.attend.rows[self.rows.start];
            let last = self.attend.rows[self.rows.end - 1].position;
            // What each query sees of the span, counted from its start; all of it for the tile.
            let seen = |position: usize| {
                let seen = self.attend.seen(position);
                let of_span = |at: usize| at.clamp(start, start + SPAN) - start;
                of_span(seen.start)..of_span(seen.end)
            };
            let of_query = |query: usize| seen(first.position + query / group);
            let tile = seen(first.position).start..seen(last).end;
            let cached = start + tile.start..start + tile.end;
            let offsets = self.attend.kv.offsets(first.blocks, cached, self.kv_head);
            let part = Part {
                offsets: &offsets,
                first: tile.start,
                kv: self.attend.kv.kv,
                head_dim,
                head_bytes: self.attend.kv.head_bytes(),
            };

            for block in tile.start / LANES..tile.end.div_ceil(LANES) {
                part.transpose(simd, self.attend.kv.keys, block, keys);
                let keys = &keys[..head_dim];
                // As many accumulators as it takes to keep two multipliers busy.
                let together = if S::WIDE_TILES { 2 } else { 1 };
                let scores = scores.chunks_mut(together * QUAD * SPAN_VECTORS);
                for (queries, scores) in queries.chunks(together * head_dim).zip(scores) {
                    let scale = self.attend.spec.scale as f32;
                    let scores = &mut scores[block..];
                    match queries.len() > head_dim {
                        true => dots::<S, 2>(simd, queries, keys, scale, scores),
                        false => dots::<S, 1>(simd, queries, keys, scale, scores),
                    }
                }
            }

            state.reset(count, vectors);
            for (query, scores) in scores.chunks_exact_mut(SPAN_VECTORS).take(count).enumerate() {
                let seen = of_query(query);
                if !seen.is_empty() {
                    if let Some(softcap) = self.attend.spec.softcap {
                        let blocks = seen.start / LANES..seen.end.div_ceil(LANES);
                        scores[blocks].iter_mut().for_each(|it| cap(simd, softcap as f32, it));
                    }
                    (state.largest[query], state.totals[query]) = softmax(simd, scores, seen);
                }
            }

            let steps = tile.start / STEP..tile.end.div_ceil(STEP);
            for step in steps.map(|step| step * STEP..(step + 1) * STEP) {
                let here = step.start.max(tile.start)..step.end.min(tile.end);
                part.widen(simd, self.attend.kv.values, here, step.start, values, vectors);
                let of_step = |query: usize| {
                    let seen = of_query(query);
                    seen.start.max(step.start)..seen.end.min(step.end)
                };
                let mut query = 0;
                while query < count {
                    let range = of_step(query);
                    let alike = (query + 1..count).take(QUAD - 1);
                    let alike = 1 + alike.take_while(|&other| of_step(other) == range).count();
                    let weights = &scores[query * SPAN_VECTORS..];
                    let values = &values[..];
                    let sums = &mut state.sums[query * vectors..];
                    query += match alike {
                        1 => weigh::<S, 1>(simd, weights, range, values, step.start, sums, vectors),
                        2 | 3 => {
                            weigh::<S, 2>(simd, weights, range, values, step.start, sums, vectors)
                        }
                        _ => weigh::<S, QUAD>(
                            simd, weights, range, values, step.start, sums, vectors,
                        ),
                    };
                }
            }
            self.state.merge(simd, state);
        }
    }
}

/// The cached positions of one span that a tile sees, for one head. How they are stored is asked once for many of them,
/// so that all else is compiled once.
struct Part<'a> {
    /// Where the head of each position starts, in bytes.
    offsets: &'a [usize],
    /// The first of these positions, counted from the start of the span.
    first: usize,
    kv: KvDtype,
    head_dim: usize,
    head_bytes: usize,
}

impl Part<'_> {
    /// The head of `position`, counted from the start of the span, if the tile sees it. Prefetches
    /// the one sixteen positions later.
    #[inline(always)]
    fn head<'c, S: Simd>(&self, simd: S, cache: &'c [u8], position: usize) -> Option<&'c [u8]> {
        let index = position.checked_sub(self.first)?;
        if let Some(&ahead) = self.offsets.get(index + LANES) {
            for byte in (0..self.head_bytes).step_by(64) {
                simd.prefetch(cache.as_ptr().wrapping_add(ahead + byte));
            }
        }
        Some(&cache[*self.offsets.get(index)?..][..self.head_bytes])
    }

    /// Widens and transposes the keys of the positions of `block`, sixteen of the span; those that
    /// the tile does not see are zero.
    #[inline(always)]
    fn transpose<S: Simd>(&self, simd: S, cache: &[u8], block: usize, keys: &mut [[f32; LANES]]) {
        match self.kv {
            KvDtype::F32 => self.transpose_as::<S, F32>(simd, cache, block, keys),
            KvDtype::F16 => self.transpose_as::<S, F16>(simd, cache, block, keys),
            KvDtype::Q8 => self.transpose_as::<S, Codes>(simd, cache, block, keys),
        }
    }

    /// The same where heads are stored as `K`.
    #[inline(always)]
    fn transpose_as<S: Simd, K: Stored>(
        &self,
        simd: S,
        cache: &[u8],
        block: usize,
        keys: &mut [[f32; LANES]],
    ) {
        let mut heads = [K::head(&[], self.head_dim); LANES];
        for (lane, parts) in heads.iter_mut().enumerate() {
            if let Some(head) = self.head(simd, cache, block * LANES + lane) {
                *parts = K::head(head, self.head_dim);
            }
        }
        for (vector, keys) in keys.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut square = [simd.splat(0.0); LANES];
            for lane in 0..LANES {
                square[lane] = K::load(simd, heads[lane], vector);
            }
            let columns = simd.transpose(square);
            for lane in 0..LANES {
                simd.store(columns[lane], &mut keys[lane]);
            }
        }
    }

    /// Widens the values of `positions` into `values`, where the first is that of `start`.
    #[inline(always)]
    fn widen<S: Simd>(
        &self,
        simd: S,
        cache: &[u8],
        positions: Range<usize>,
        start: usize,
        values: &mut [[f32; LANES]],
        vectors: usize,
    ) {
        match self.kv {
            KvDtype::F32 => self.widen_as::<S, F32>(simd, cache, positions, start, values, vectors),
            KvDtype::F16 => self.widen_as::<S, F16>(simd, cache, positions, start, values, vectors),
            KvDtype::Q8 => {
                self.widen_as::<S, Codes>(simd, cache, positions, start, values, vectors)
            }
        }
    }

    /// The same where heads are stored as `K`.
    #[inline(always)]
    fn widen_as<S: Simd, K: Stored>(
        &self,
        simd: S,
        cache: &[u8],
        positions: Range<usize>,
        start: usize,
        values: &mut [[f32; LANES]],
        vectors: usize,
    ) {
        for position in positions {
            let head = self.head(simd, cache, position).unwrap_or(&[]);
            let values = &mut values[(position - start) * vectors..][..vectors];
            K::widen(simd, K::head(head, self.head_dim), values);
        }
    }
}

/// The micro-kernel of `scale · q · keysᵀ`: scores of sixteen keys, transposed, with some quads of queries,
/// `[quad, element]`; `scores[(quad * QUAD + query) * SPAN_VECTORS]`.
#[inline(always)]
fn dots<S: Simd, const QUADS: usize>(
    simd: S,
    queries: &[[f32; QUAD]],
    keys: &[[f32; LANES]],
    scale: f32,
    scores: &mut [[f32; LANES]],
) {
    let mut of_quad: [&[[f32; QUAD]]; QUADS] = [&[]; QUADS];
    for (of_quad, queries) in of_quad.iter_mut().zip(queries.chunks_exact(keys.len())) {
        *of_quad = queries;
    }
    let mut sums = [[simd.splat(0.0); QUAD]; QUADS];
    for (index, key) in keys.iter().enumerate() {
        let key = simd.load(key);
        for quad in 0..QUADS {
            for i in 0..QUAD {
                let query = simd.splat(of_quad[quad][index][i]);
                sums[quad][i] = simd.mul_add(query, key, sums[quad][i]);
            }
        }
    }
    for (sum, scores) in sums.as_flattened().iter().zip(scores.chunks_mut(SPAN_VECTORS)) {
        simd.store(simd.mul(*sum, simd.splat(scale)), &mut scores[0]);
    }
}

/// Turns the scores of the positions `seen` into `exp(score - largest)` and the others in the same
/// vectors into zero; returns the largest score and the sum.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [[f32; LANES]], seen: Range<usize>) -> (f32, f32) {
    let blocks = seen.start / LANES..seen.end.div_ceil(LANES);
    let (before, after) = (seen.start % LANES, blocks.end * LANES - seen.end);
    let scores = &mut scores[blocks];
    let mask = |scores: &mut [[f32; LANES]], rest: f32| {
        let flat = scores.as_flattened_mut();
        let end = flat.len() - after;
        flat[..before].fill(rest);
        flat[end..].fill(rest);
    };
    mask(scores, f32::NEG_INFINITY);
    let mut maxima = simd.splat(f32::NEG_INFINITY);
    for chunk in &*scores {
        maxima = simd.max(maxima, simd.load(chunk));
    }
    let mut lanes = [0.0; LANES];
    simd.store(maxima, &mut lanes);
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let offset = simd.splat(largest);
    for chunk in &mut *scores {
        simd.store(exp(simd, simd.sub(simd.load(chunk), offset)), chunk);
    }
    mask(scores, 0.0);
    let mut total = simd.splat(0.0);
    for chunk in &*scores {
        total = simd.add(total, simd.load(chunk));
    }
    (largest, simd.sum(total))
}

/// Adds values weighted for `HEADS` queries to their accumulators: `weights[query * SPAN + position]`,
/// `values[(position - start) * vectors]`, `sums[query * vectors]`; returns `HEADS`.
///
/// Vector by vector (four at a time where there are registers for it), so that accumulators stay in
/// registers while the positions pass, in order.
#[inline(always)]
fn weigh<S: Simd, const HEADS: usize>(
    simd: S,
    weights: &[[f32; LANES]],
    positions: Range<usize>,
    values: &[[f32; LANES]],
    start: usize,
    sums: &mut [[f32; LANES]],
    vectors: usize,
) -> usize {
    if positions.is_empty() {
        return HEADS;
    }
    let weights = weights.as_flattened();
    let mut of_head: [&[f32]; HEADS] = [&[]; HEADS];
    for (h, of_head) in of_head.iter_mut().enumerate() {
        *of_head = &weights[h * SPAN..][positions.clone()];
    }
    let values = &values[(positions.start - start) * vectors..][..positions.len() * vectors];
    let mut first = 0;
    while first < vectors {
        let target = &mut sums[first..];
        first += match S::WIDE_TILES && first + 4 <= vectors {
            true => columns::<S, HEADS, 4>(simd, &of_head, &values[first..], target, vectors),
            false => columns::<S, HEADS, 1>(simd, &of_head, &values[first..], target, vectors),
        };
    }
    HEADS
}

/// The micro-kernel of `weights · values`: `VECTORS` vectors of [`weigh`]; returns how many.
#[inline(always)]
fn columns<S: Simd, const HEADS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[&[f32]; HEADS],
    values: &[[f32; LANES]],
    sums: &mut [[f32; LANES]],
    vectors: usize,
) -> usize {
    let positions = weights[0].len();
    let mut totals = [[simd.splat(0.0); VECTORS]; HEADS];
    for h in 0..HEADS {
        for i in 0..VECTORS {
            totals[h][i] = simd.load(&sums[h * vectors + i]);
        }
    }
    for j in 0..positions {
        let values = &values[j * vectors..][..VECTORS];
        for h in 0..HEADS {
            let weight = simd.splat(weights[h][j]);
            for i in 0..VECTORS {
                totals[h][i] = simd.mul_add(weight, simd.load(&values[i]), totals[h][i]);
            }
        }
    }
    for h in 0..HEADS {
        for i in 0..VECTORS {
            simd.store(totals[h][i], &mut sums[h * vectors + i]);
        }
    }
    VECTORS
}
