//! Attention over keys and values that lie in blocks, without gathering or repeating them.

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Element, F16, F32, FloatType};
use super::elementwise::{exp, load_tail};
use super::simd::{Kernel, LANES, Simd};
use super::{PARALLEL_WORK, Tier};

/// The cached keys and values of one layer, each `[blocks, block_positions, kv_heads, head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct KvView<'a> {
    /// Keys, little-endian.
    pub(crate) keys: &'a [u8],
    /// Values, little-endian.
    pub(crate) values: &'a [u8],
    /// How both are stored: f32 or f16.
    pub(crate) float: FloatType,
    /// Positions in one block.
    pub(crate) block_positions: usize,
    /// Heads of the cache.
    pub(crate) kv_heads: usize,
    /// Elements of one head.
    pub(crate) head_dim: usize,
}

impl KvView<'_> {
    /// Where the head of a position starts, in elements.
    #[inline(always)]
    fn element(&self, blocks: &[u32], position: usize, kv_head: usize) -> usize {
        let slot = blocks[position / self.block_positions] as usize * self.block_positions
            + position % self.block_positions;
        (slot * self.kv_heads + kv_head) * self.head_dim
    }
}

/// Whose past one row sees.
#[derive(Clone, Copy)]
pub(crate) struct AttendRow<'a> {
    /// The row's own position, whose key and value are in the cache already.
    pub(crate) position: usize,
    /// The blocks of its sequence, in order of position.
    pub(crate) blocks: &'a [u32],
}

/// Attention of one layer for one step.
pub(crate) struct Attend<'a> {
    /// The cache.
    pub(crate) kv: KvView<'a>,
    /// One per row.
    pub(crate) rows: &'a [AttendRow<'a>],
    /// Query heads, a multiple of `kv.kv_heads`; consecutive ones share a head of the cache.
    pub(crate) heads: usize,
    /// What scores are multiplied with before the softmax.
    pub(crate) scale: f32,
    /// How many positions a row sees, its own included; all of them if `None`.
    pub(crate) window: Option<usize>,
}

/// `softmax(scale · q · keysᵀ) · values` for each row and head over the positions it sees.
///
/// `q` and the result are `[rows, heads, head_dim]`. Runs on the current rayon pool.
pub(crate) fn attend(tier: Tier, attend: &Attend<'_>, q: &[f32]) -> Vec<f32> {
    let group = attend.heads / attend.kv.kv_heads * attend.kv.head_dim;
    let mut out = vec![0.0; q.len()];
    let run = |scratch: &mut Scratch, (index, out): (usize, &mut [f32])| {
        let (row, kv_head) = (index / attend.kv.kv_heads, index % attend.kv.kv_heads);
        let q = &q[index * group..][..group];
        let row = attend.rows[row];
        tier.run(Head { attend, row, kv_head, q, out, scratch });
    };
    let seen: usize = attend.rows.iter().map(|row| row.position + 1).sum();
    if seen * attend.heads * attend.kv.head_dim < PARALLEL_WORK {
        let mut scratch = Scratch::default();
        for part in out.chunks_exact_mut(group).enumerate() {
            run(&mut scratch, part);
        }
    } else {
        // Row after row with one head of the cache, whose keys and values then stay near.
        let mut parts: Vec<_> = out.chunks_exact_mut(group).enumerate().collect();
        parts.sort_by_key(|(index, _)| index % attend.kv.kv_heads);
        parts.into_par_iter().for_each_init(Scratch::default, run);
    }
    out
}

/// What a thread keeps between heads.
#[derive(Default)]
struct Scratch {
    /// `[group, positions seen]`.
    scores: Vec<f32>,
    /// `[group, head_dim]` in whole vectors, padded with zeros: queries, then weighted sums.
    queries: Vec<[f32; LANES]>,
    sums: Vec<[f32; LANES]>,
}

/// One row with one head of the cache, and the group of query heads that share it.
struct Head<'a> {
    attend: &'a Attend<'a>,
    row: AttendRow<'a>,
    kv_head: usize,
    /// `[group, head_dim]`.
    q: &'a [f32],
    /// `[group, head_dim]`.
    out: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.attend.kv.float {
            FloatType::F16 => self.run_as::<S, F16>(simd),
            _ => self.run_as::<S, F32>(simd),
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn run_as<S: Simd, E: Element>(self, simd: S) {
        let Attend { kv, scale, window, .. } = self.attend;
        let end = self.row.position + 1;
        let start = window.map_or(0, |window| end.saturating_sub(window));
        let head_dim = kv.head_dim;
        let head_bytes = head_dim * E::BYTES;
        let vectors = head_dim.div_ceil(LANES);
        let group = self.q.len() / head_dim;
        let seen = end - start;
        let Scratch { scores, queries, sums } = self.scratch;
        scores.clear();
        scores.resize(group * seen, 0.0);
        queries.clear();
        queries.resize(group * vectors, [0.0; LANES]);
        sums.clear();
        sums.resize(group * vectors, [0.0; LANES]);
        for (q, padded) in self.q.chunks_exact(head_dim).zip(queries.chunks_exact_mut(vectors)) {
            padded.as_flattened_mut()[..head_dim].copy_from_slice(q);
        }

        for position in start..end {
            let at = kv.element(self.row.blocks, position, self.kv_head) * E::BYTES;
            let key = &kv.keys[at..][..head_bytes];
            let scores = &mut scores[position - start..];
            let mut head = 0;
            while head < group {
                let queries = &queries[head * vectors..];
                let scores = &mut scores[head * seen..];
                head += match group - head {
                    1 => dots::<S, E, 1>(simd, queries, key, *scale, scores, seen),
                    2 | 3 => dots::<S, E, 2>(simd, queries, key, *scale, scores, seen),
                    _ => dots::<S, E, 4>(simd, queries, key, *scale, scores, seen),
                };
            }
        }

        for scores in scores.chunks_exact_mut(seen) {
            softmax(simd, scores);
        }

        let values = |position: usize| {
            let at = kv.element(self.row.blocks, position, self.kv_head) * E::BYTES;
            E::chunks(&kv.values[at..][..head_bytes])
        };
        let mut head = 0;
        while head < group {
            let weights = &scores[head * seen..];
            let sums = &mut sums[head * vectors..];
            head += match group - head {
                1 => weigh::<S, E, 1>(simd, weights, start..end, values, sums, vectors),
                2 | 3 => weigh::<S, E, 2>(simd, weights, start..end, values, sums, vectors),
                _ => weigh::<S, E, 4>(simd, weights, start..end, values, sums, vectors),
            };
        }
        for (out, sums) in self.out.chunks_exact_mut(head_dim).zip(sums.chunks_exact(vectors)) {
            out.copy_from_slice(&sums.as_flattened()[..head_dim]);
        }
    }
}

/// Scaled scores of one key with `HEADS` queries, `scores[h · stride]`; returns `HEADS`.
#[inline(always)]
fn dots<S: Simd, E: Element, const HEADS: usize>(
    simd: S,
    queries: &[[f32; LANES]],
    key: &[u8],
    scale: f32,
    scores: &mut [f32],
    stride: usize,
) -> usize {
    let (whole, tail) = E::chunks(key);
    let vectors = whole.len() + usize::from(!tail.is_empty());
    let mut sums = [simd.splat(0.0); HEADS];
    for (i, chunk) in whole.iter().enumerate() {
        let key = E::load(simd, chunk);
        for h in 0..HEADS {
            sums[h] = simd.mul_add(simd.load(&queries[h * vectors + i]), key, sums[h]);
        }
    }
    if !tail.is_empty() {
        let key = E::load_tail(simd, tail);
        for h in 0..HEADS {
            sums[h] = simd.mul_add(simd.load(&queries[h * vectors + vectors - 1]), key, sums[h]);
        }
    }
    for h in 0..HEADS {
        scores[h * stride] = simd.sum(sums[h]) * scale;
    }
    HEADS
}

/// Sums of values weighted for `HEADS` heads: `weights[h · positions + j]`, `sums[h · vectors + i]`;
/// returns `HEADS`.
///
/// Vector by vector (four at a time where there are registers for it), so that sums stay in
/// registers while the positions pass, in order.
#[inline(always)]
fn weigh<'v, S: Simd, E: Element<Chunk: 'v>, const HEADS: usize>(
    simd: S,
    weights: &[f32],
    positions: Range<usize>,
    values: impl Fn(usize) -> (&'v [E::Chunk], &'v [u8]),
    sums: &mut [[f32; LANES]],
    vectors: usize,
) -> usize {
    const BLOCK: usize = 4;
    let seen = positions.len();
    let mut first = 0;
    while first < vectors {
        if S::WIDE_TILES && first + BLOCK <= values(positions.start).0.len() {
            let mut totals = [[simd.splat(0.0); BLOCK]; HEADS];
            for (j, position) in positions.clone().enumerate() {
                let (whole, _) = values(position);
                for i in 0..BLOCK {
                    let value = E::load(simd, &whole[first + i]);
                    for h in 0..HEADS {
                        let weight = simd.splat(weights[h * seen + j]);
                        totals[h][i] = simd.mul_add(weight, value, totals[h][i]);
                    }
                }
            }
            for h in 0..HEADS {
                for i in 0..BLOCK {
                    simd.store(totals[h][i], &mut sums[h * vectors + first + i]);
                }
            }
            first += BLOCK;
        } else {
            let mut totals = [simd.splat(0.0); HEADS];
            for (j, position) in positions.clone().enumerate() {
                let (whole, tail) = values(position);
                let value = match whole.get(first) {
                    Some(chunk) => E::load(simd, chunk),
                    None => E::load_tail(simd, tail),
                };
                for h in 0..HEADS {
                    let weight = simd.splat(weights[h * seen + j]);
                    totals[h] = simd.mul_add(weight, value, totals[h]);
                }
            }
            for h in 0..HEADS {
                simd.store(totals[h], &mut sums[h * vectors + first]);
            }
            first += 1;
        }
    }
    HEADS
}

/// Turns scores into weights that sum to one.
#[inline(always)]
fn softmax<S: Simd>(simd: S, scores: &mut [f32]) {
    let (whole, tail) = scores.as_chunks_mut::<LANES>();
    let mut maxima = load_tail(simd, tail, f32::NEG_INFINITY);
    for chunk in &*whole {
        maxima = simd.max(maxima, simd.load(chunk));
    }
    let mut lanes = [0.0; LANES];
    simd.store(maxima, &mut lanes);
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let offset = simd.splat(largest);
    let mut total = simd.splat(0.0);
    for chunk in &mut *whole {
        let weight = exp(simd, simd.sub(simd.load(chunk), offset));
        total = simd.add(total, weight);
        simd.store(weight, chunk);
    }
    if !tail.is_empty() {
        let mut last = [0.0; LANES];
        let weight = exp(simd, simd.sub(load_tail(simd, tail, largest), offset));
        simd.store(weight, &mut last);
        last[tail.len()..].fill(0.0);
        total = simd.add(total, simd.load(&last));
        tail.copy_from_slice(&last[..tail.len()]);
    }
    let scale = 1.0 / simd.sum(total);
    for score in scores {
        *score *= scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const BLOCK: usize = 4;

    struct Case {
        keys: Vec<u8>,
        values: Vec<u8>,
        float: FloatType,
        kv_heads: usize,
        head_dim: usize,
        heads: usize,
        window: Option<usize>,
        q: Vec<f32>,
        rows: Vec<(usize, Vec<u32>)>,
    }

    impl Case {
        fn random(random: &mut Random) -> Case {
            let (kv_heads, head_dim) = (1 + random.below(3), 2 * (1 + random.below(20)));
            let heads = kv_heads * (1 + random.below(7));
            let float = [FloatType::F32, FloatType::F16][random.below(2)];
            let elements = 9 * BLOCK * kv_heads * head_dim;
            let mut cache = || {
                let values: Vec<f32> = (0..elements).map(|_| random.signed()).collect();
                let mut bytes = vec![0; elements * float.bytes()];
                match float {
                    FloatType::F16 => F16::store(&values, &mut bytes),
                    _ => F32::store(&values, &mut bytes),
                }
                bytes
            };
            let (keys, values) = (cache(), cache());
            let rows: Vec<_> = (0..1 + random.below(4))
                .map(|_| {
                    let position = random.below(9 * BLOCK);
                    let first = random.below(9) as u32;
                    (position, (0..9).map(|i| (first + 2 * i) % 9).collect())
                })
                .collect();
            let window = [None, Some(1 + random.below(12))][random.below(2)];
            let q = (0..rows.len() * heads * head_dim).map(|_| random.signed()).collect();
            Case { keys, values, float, kv_heads, head_dim, heads, window, q, rows }
        }

        fn run(&self, tier: Tier) -> Vec<f32> {
            let rows: Vec<_> = (self.rows.iter())
                .map(|(position, blocks)| AttendRow { position: *position, blocks })
                .collect();
            let kv = KvView {
                keys: &self.keys,
                values: &self.values,
                float: self.float,
                block_positions: BLOCK,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
            };
            let (heads, window) = (self.heads, self.window);
            attend(tier, &Attend { kv, rows: &rows, heads, scale: 0.5, window }, &self.q)
        }

        /// The same in f64, from the definition.
        fn exact(&self) -> Vec<f64> {
            let (keys, values) = (self.float.widen(&self.keys), self.float.widen(&self.values));
            let mut out = Vec::new();
            for (row, (position, blocks)) in self.rows.iter().enumerate() {
                for head in 0..self.heads {
                    let kv_head = head / (self.heads / self.kv_heads);
                    let q = &self.q[(row * self.heads + head) * self.head_dim..][..self.head_dim];
                    let (mut total, mut sums) = (0.0, vec![0.0; self.head_dim]);
                    for j in 0..=*position {
                        if self.window.is_some_and(|window| j + window <= *position) {
                            continue;
                        }
                        let slot = blocks[j / BLOCK] as usize * BLOCK + j % BLOCK;
                        let at = (slot * self.kv_heads + kv_head) * self.head_dim;
                        let score: f64 =
                            (0..q.len()).map(|d| f64::from(q[d]) * f64::from(keys[at + d])).sum();
                        let weight = (score * 0.5).exp();
                        total += weight;
                        for (d, sum) in sums.iter_mut().enumerate() {
                            *sum += weight * f64::from(values[at + d]);
                        }
                    }
                    out.extend(sums.iter().map(|sum| sum / total));
                }
            }
            out
        }
    }

    #[test]
    fn agrees_with_f64_for_random_shapes_windows_and_blocks() {
        for seed in 0..200 {
            let case = Case::random(&mut Random::new(seed));
            for tier in Tier::all() {
                for (found, exact) in case.run(tier).into_iter().zip(case.exact()) {
                    let error = (f64::from(found) - exact).abs();
                    assert!(error < 1e-5, "seed {seed} {tier:?}: {found} {exact}");
                }
            }
        }
    }

    #[test]
    fn fused_tiers_agree_to_the_bit() {
        for seed in 0..50 {
            let case = Case::random(&mut Random::new(seed));
            let fused: Vec<_> =
                Tier::all().into_iter().skip(1).map(|tier| case.run(tier)).collect();
            assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
        }
    }
}
