//! The online softmax: weighted values of part of the past, and how parts become one.

use crate::device::cpu::buffer::{Uninit, kept};
use crate::device::cpu::exponential::exp;
use crate::device::cpu::isa::simd::{Kernel, LANES, Simd};

/// The accumulators of each query of a tile over some positions.
#[derive(Default)]
pub(super) struct State {
    /// One per query: the largest score, and the sum of `exp(score - largest)`; the latter is zero
    /// as long as the query has seen nothing.
    pub(super) largest: Vec<f32>,
    pub(super) totals: Vec<f32>,
    /// `[queries, vectors]`: values weighted with `exp(score - largest)`, `head_dim` of them padded
    /// to whole vectors.
    pub(super) sums: Vec<[f32; LANES]>,
}

impl State {
    /// Makes this the state of `queries` queries that have seen nothing.
    pub(super) fn reset(&mut self, queries: usize, vectors: usize) {
        self.largest.clear();
        kept(&mut self.largest, queries, f32::NEG_INFINITY);
        self.totals.clear();
        kept(&mut self.totals, queries, 0.0);
        self.sums.clear();
        kept(&mut self.sums, queries * vectors, [0.0; LANES]);
    }

    /// Adds the accumulators of the positions that follow, both rescaled to the larger maximum.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(&mut self, simd: S, next: &State) {
        let vectors = self.sums.len() / self.totals.len().max(1);
        for query in 0..self.totals.len() {
            if next.totals[query] == 0.0 {
                continue;
            }
            let all = query * vectors..(query + 1) * vectors;
            if self.totals[query] == 0.0 {
                self.largest[query] = next.largest[query];
                self.totals[query] = next.totals[query];
                self.sums[all.clone()].copy_from_slice(&next.sums[all]);
                continue;
            }
            let largest = self.largest[query].max(next.largest[query]);
            let scale = exp(simd, simd.splat(self.largest[query] - largest));
            let next_scale = exp(simd, simd.splat(next.largest[query] - largest));
            let mut total = [self.totals[query]; LANES];
            let next_total = [next.totals[query]; LANES];
            let sums = self.sums[all.clone()].iter_mut().chain([&mut total]);
            for (sum, next) in sums.zip(next.sums[all].iter().chain([&next_total])) {
                let scaled = simd.mul(simd.load(sum), scale);
                simd.store(simd.mul_add(simd.load(next), next_scale, scaled), sum);
            }
            self.totals[query] = total[0];
            self.largest[query] = largest;
        }
    }
}

/// Merges the states of consecutive spans and writes the result, `[group, head_dim]` of each row.
pub(super) struct Finish<'a, 'b> {
    pub(super) states: &'a [State],
    pub(super) head_dim: usize,
    /// `[group]`: scores of which only the exponentials count.
    pub(super) sinks: Option<&'a [f32]>,
    /// One per row, `[group, head_dim]`.
    pub(super) out: &'a mut [&'b mut Uninit],
}

impl Kernel for Finish<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [first, rest @ ..] = self.states else { unreachable!("every row sees itself") };
        let mut merged = State::default();
        let state = match rest {
            [] => first,
            _ => {
                merged.reset(first.totals.len(), first.sums.len() / first.totals.len().max(1));
                self.states.iter().for_each(|state| merged.merge(simd, state));
                &merged
            }
        };
        let vectors = self.head_dim.div_ceil(LANES);
        let queries: usize = self.out.iter().map(|row| row.len() / self.head_dim).sum();
        assert_eq!(
            state.totals.len(),
            queries,
            "one for each head of each row, which are all written"
        );
        assert_eq!(state.sums.len(), queries * vectors, "all elements of each");
        let group = queries / self.out.len().max(1);
        let heads = self.out.iter_mut().flat_map(|row| row.chunks_exact_mut(self.head_dim));
        for (query, (out, sums)) in heads.zip(state.sums.chunks_exact(vectors)).enumerate() {
            let scale = match self.sinks {
                None => 1.0 / state.totals[query],
                Some(sinks) => beside(simd, state, query, sinks[query % group]),
            };
            for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
                out.write(sum * scale);
            }
        }
    }
}

/// What the accumulators of a query are multiplied with where a sink takes its part of the softmax.
#[inline(always)]
fn beside<S: Simd>(simd: S, state: &State, query: usize, sink: f32) -> f32 {
    let (largest, total) = (state.largest[query], state.totals[query]);
    // So that a sink that is no number stays so, as a score does.
    let most = if largest > sink { largest } else { sink };
    let mut powers = [0.0; LANES];
    powers[0] = largest - most;
    powers[1] = sink - most;
    let power = exp(simd, simd.load(&powers));
    simd.store(power, &mut powers);
    powers[0] / (total * powers[0] + powers[1])
}
