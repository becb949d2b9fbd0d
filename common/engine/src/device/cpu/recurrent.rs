//! Recurrent operations on the processor: short convolutions, Mamba 2 and the gated delta rule. How many rows of a
//! sequence come in a step changes no bit. Threads share the rows of a convolution; those of a recurrence pass one
//! after the other, and threads share its heads.

use std::mem::MaybeUninit;

use super::buffer::{Uninit, UninitVec};
use super::elementwise::{by_rows, load_tail};
use super::exponential::exp;
use super::isa::simd::{Kernel, LANES, Simd};
use super::isa::tier::Tier;
use super::pool::for_each_mut;
use crate::batch::BatchItem;
use crate::device::recurrent::{Convolution, Recurrence, Recurring, States, begin, parts_of};

/// The causal depthwise convolution of each row of `x`, `[rows, channels]`; the result is as large.
pub(crate) fn convolve(
    tier: Tier,
    convolution: &Convolution,
    states: &mut States,
    items: &[BatchItem],
    x: &[f32],
) -> Vec<f32> {
    let width = convolution.channels;
    let mut out = UninitVec::new(x.len());
    let rows: Vec<_> = parts_of(items)
        .flat_map(|(rows, slots)| rows.clone().map(move |row| (row, rows.clone(), slots.from)))
        .collect();
    let (parts, _) = states.parts();
    let state = &parts[0];
    by_rows(out.uninit(), width, |first, out| {
        for ((row, rows, from), out) in rows[first..].iter().zip(out.chunks_exact_mut(width)) {
            let past = convolution.past(state, *from);
            let inputs = convolution.inputs(x, past, (rows, *row));
            tier.run(Convolve { convolution, inputs, out });
        }
    });
    convolution.keep(states, items, x);
    // SAFETY: `parts_of` has every row of the step once, or panics, and the kernel writes all channels of it.
    unsafe { out.assume_init() }
}

struct Convolve<'a, I> {
    convolution: &'a Convolution,
    inputs: I,
    /// `[channels]`
    out: &'a mut Uninit,
}

impl<'a, I: Iterator<Item = Option<&'a [f32]>>> Kernel for Convolve<'_, I> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Convolution { weights, bias, channels, .. } = self.convolution;
        let weights = weights.chunks_exact(*channels);
        let met: Vec<(&[f32], &[f32])> = self
            .inputs
            .zip(weights)
            .filter_map(|(input, weights)| Some((input?, weights)))
            .collect();
        for (index, out) in self.out.chunks_mut(LANES).enumerate() {
            let here = |all: &[f32]| {
                let rest = &all[index * LANES..];
                match rest.first_chunk::<LANES>() {
                    Some(chunk) => simd.load(chunk),
                    None => load_tail(simd, rest, 0.0),
                }
            };
            let mut sums = bias.as_ref().map_or(simd.splat(0.0), |bias| here(bias));
            for (input, weights) in &met {
                sums = simd.mul_add(here(input), here(weights), sums);
            }
            let mut lanes = [0.0; LANES];
            simd.store(sums, &mut lanes);
            out.iter_mut().zip(lanes).for_each(|(out, lane)| _ = out.write(lane));
        }
    }
}

/// `ln(1 + exp(x + bias))` of rows as wide as `bias`.
pub(crate) fn softplus(tier: Tier, x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len().max(1)) {
        tier.run(Softplus { x: row, bias });
    }
}

struct Softplus<'a> {
    x: &'a mut [f32],
    bias: &'a [f32],
}

impl Kernel for Softplus<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (x, bias) in self.x.chunks_mut(LANES).zip(self.bias.chunks(LANES)) {
            let sum = simd.add(load_tail(simd, x, 0.0), load_tail(simd, bias, 0.0));
            let negative = simd.sub(simd.splat(0.0), sum);
            // ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
            let power = exp(simd, simd.min(sum, negative));
            let mut lanes = [0.0; LANES];
            simd.store(simd.add(simd.max(sum, simd.splat(0.0)), ln_1p(simd, power)), &mut lanes);
            x.copy_from_slice(&lanes[..x.len()]);
        }
    }
}

/// `ln(1 + x)` for `0 <= x <= 1`: twice the inverse hyperbolic tangent of `z = x / (2 + x)`, whose series in
/// `z² <= 1/9` ends where its terms are below the last digit.
#[inline(always)]
fn ln_1p<S: Simd>(simd: S, x: S::V) -> S::V {
    const TERMS: [f32; 8] =
        [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];
    let z = simd.div(x, simd.add(simd.splat(2.0), x));
    let square = simd.mul(z, z);
    let mut sum = simd.splat(1.0 / 17.0);
    for term in TERMS {
        sum = simd.mul_add(sum, square, simd.splat(term));
    }
    simd.mul(simd.add(z, z), sum)
}

/// The recurrence of all rows, `[rows, heads × value_dim]`, which updates the state of each sequence.
pub(crate) fn recur(
    tier: Tier,
    recurrence: &Recurrence,
    states: &mut States,
    items: &[BatchItem],
    of: Recurring<'_, [f32]>,
) -> Vec<f32> {
    let &Recurrence { heads, value_dim, .. } = recurrence;
    let rows = of.values.len() / (heads * value_dim);
    // By heads first, as they are computed; then as rows have them.
    let mut by_head = UninitVec::new(of.values.len());
    let (parts, each) = states.parts();
    let outs = by_head.uninit().chunks_exact_mut((rows * value_dim).max(1));
    let mut tasks: Vec<_> = parts.iter_mut().zip(outs).collect();
    for_each_mut(&mut tasks, |head, (part, out)| {
        for (rows, slots) in parts_of(items) {
            let out = &mut out[rows.start * value_dim..rows.end * value_dim];
            let state = begin(part, each, slots);
            tier.run(Recur { recurrence, head, first: rows.start, of, state, out });
        }
    });
    // SAFETY: each head's task writes the values of all rows of the step, which `parts_of` has once each, or panics.
    let by_head = unsafe { by_head.assume_init() };
    if heads == 1 || rows == 1 {
        return by_head;
    }
    let mut out = UninitVec::new(by_head.len());
    by_rows(out.uninit(), heads * value_dim, |first, out| {
        for (index, out) in out.chunks_exact_mut(value_dim).enumerate() {
            let (row, head) = (first + index / heads, index % heads);
            let values = &by_head[(head * rows + row) * value_dim..][..value_dim];
            out.iter_mut().zip(values).for_each(|(out, value)| _ = out.write(*value));
        }
    });
    // SAFETY: there are whole rows, and all heads of each were written.
    unsafe { out.assume_init() }
}

/// The recurrence of rows of one sequence with the state of one head.
struct Recur<'a> {
    recurrence: &'a Recurrence,
    head: usize,
    /// The first of the rows, in the step.
    first: usize,
    of: Recurring<'a, [f32]>,
    /// `[key_dim, value_dim]`
    state: &'a mut [f32],
    /// `[rows, value_dim]`
    out: &'a mut Uninit,
}

/// One row, as its head's matrix meets it.
struct Row<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    /// One for each number of the key.
    decays: &'a [f32],
    weight: f32,
    skip: f32,
    corrects: bool,
}

impl Kernel for Recur<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Recur { recurrence, head, first, of, state, out } = self;
        let &Recurrence { heads, key_dim, value_dim, corrects, .. } = recurrence;
        let skip = recurrence.skips.as_ref().map_or(0.0, |skips| skips[head]);
        let mut decays = vec![0.0; key_dim];
        for (index, out) in out.chunks_exact_mut(value_dim).enumerate() {
            let row = first + index;
            let steps = recurrence.steps_of(of.steps, row, head);
            forget(simd, recurrence.rates[head], steps, &mut decays);
            let row = Row {
                key: recurrence.key_of(of.keys, row, head),
                query: recurrence.key_of(of.queries, row, head),
                value: recurrence.value_of(of.values, row, head),
                decays: &decays,
                weight: of.weights[row * heads + head],
                skip,
                corrects,
            };
            let mut column = 0;
            while column < value_dim {
                let vectors = (value_dim - column) / LANES;
                column += match vectors {
                    8.. if S::WIDE_TILES => columns::<S, 8>(simd, &row, state, column, out),
                    2.. => columns::<S, 2>(simd, &row, state, column, out),
                    1 => columns::<S, 1>(simd, &row, state, column, out),
                    0 => last_columns(simd, &row, state, column, out),
                };
            }
        }
    }
}

/// `exp(−rate · step)` for each number of a key.
#[inline(always)]
fn forget<S: Simd>(simd: S, rate: f32, steps: &[f32], decays: &mut [f32]) {
    let of = |steps: S::V, decays: &mut [f32]| {
        let mut lanes = [0.0; LANES];
        simd.store(exp(simd, simd.mul(steps, simd.splat(-rate))), &mut lanes);
        decays.copy_from_slice(&lanes[..decays.len()]);
    };
    match steps {
        [one] => {
            let mut decay = [0.0];
            of(simd.splat(*one), &mut decay);
            decays.fill(decay[0]);
        }
        all => {
            for (steps, decays) in all.chunks(LANES).zip(decays.chunks_mut(LANES)) {
                of(load_tail(simd, steps, 0.0), decays);
            }
        }
    }
}

/// The state's columns from `column` on, `VECTORS` vectors of them, through which the row passes twice: what is there
/// of its key, if the recurrence corrects, and then what it adds and reads. Returns how many columns.
#[inline(always)]
fn columns<S: Simd, const VECTORS: usize>(
    simd: S,
    row: &Row<'_>,
    state: &mut [f32],
    column: usize,
    out: &mut Uninit,
) -> usize {
    let width = row.value.len();
    let mut there = [simd.splat(0.0); VECTORS];
    if row.corrects {
        let rows = state.chunks_exact(width).zip(row.key).zip(row.decays);
        for ((numbers, key), decay) in rows {
            let key = simd.splat(key * decay);
            let (numbers, _) = numbers[column..].as_chunks::<LANES>();
            for vector in 0..VECTORS {
                there[vector] = simd.mul_add(simd.load(&numbers[vector]), key, there[vector]);
            }
        }
    }
    let (values, _) = row.value[column..].as_chunks::<LANES>();
    let (mut added, mut sums) = (there, there);
    for vector in 0..VECTORS {
        let value = simd.load(&values[vector]);
        added[vector] = simd.mul(simd.sub(value, there[vector]), simd.splat(row.weight));
        sums[vector] = simd.mul(value, simd.splat(row.skip));
    }
    let rows = state.chunks_exact_mut(width).zip(row.key).zip(row.query).zip(row.decays);
    for (((numbers, key), query), decay) in rows {
        let (key, query, decay) = (simd.splat(*key), simd.splat(*query), simd.splat(*decay));
        let (numbers, _) = numbers[column..].as_chunks_mut::<LANES>();
        for vector in 0..VECTORS {
            let kept = simd.mul(simd.load(&numbers[vector]), decay);
            let number = simd.mul_add(key, added[vector], kept);
            simd.store(number, &mut numbers[vector]);
            sums[vector] = simd.mul_add(number, query, sums[vector]);
        }
    }
    let (outs, _) = out[column..].as_chunks_mut::<LANES>();
    for (out, sum) in outs.iter_mut().zip(sums) {
        let mut lanes = [0.0; LANES];
        simd.store(sum, &mut lanes);
        *out = lanes.map(MaybeUninit::new);
    }
    VECTORS * LANES
}

/// The same of the columns behind the last whole vector.
#[inline(always)]
fn last_columns<S: Simd>(
    simd: S,
    row: &Row<'_>,
    state: &mut [f32],
    column: usize,
    out: &mut Uninit,
) -> usize {
    let width = row.value.len();
    let mut there = simd.splat(0.0);
    if row.corrects {
        let rows = state.chunks_exact(width).zip(row.key).zip(row.decays);
        for ((numbers, key), decay) in rows {
            let numbers = load_tail(simd, &numbers[column..], 0.0);
            there = simd.mul_add(numbers, simd.splat(key * decay), there);
        }
    }
    let value = load_tail(simd, &row.value[column..], 0.0);
    let added = simd.mul(simd.sub(value, there), simd.splat(row.weight));
    let mut sums = simd.mul(value, simd.splat(row.skip));
    let rows = state.chunks_exact_mut(width).zip(row.key).zip(row.query).zip(row.decays);
    let mut lanes = [0.0; LANES];
    for (((numbers, key), query), decay) in rows {
        let numbers = &mut numbers[column..];
        let kept = simd.mul(load_tail(simd, numbers, 0.0), simd.splat(*decay));
        let number = simd.mul_add(simd.splat(*key), added, kept);
        simd.store(number, &mut lanes);
        numbers.copy_from_slice(&lanes[..numbers.len()]);
        sums = simd.mul_add(number, simd.splat(*query), sums);
    }
    simd.store(sums, &mut lanes);
    out[column..].iter_mut().zip(lanes).for_each(|(out, lane)| _ = out.write(lane));
    width - column
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::StateSlots;
    use crate::device::recurrent::softplus_plainly;
    use crate::options::EngineOptions;
    use crate::testing::Random;

    fn item(sequence: u64, position: usize, rows: usize, slots: (Option<u32>, u32)) -> BatchItem {
        let state = Some(StateSlots { from: slots.0, to: slots.1 });
        let blocks = Vec::new();
        BatchItem { sequence, position, rows, prompt: true, blocks, known: 0, state }
    }

    /// Two sequences in three steps, one of which goes on from where the other was.
    fn steps() -> [Vec<BatchItem>; 3] {
        [
            vec![item(1, 0, 5, (None, 2)), item(2, 0, 2, (None, 0))],
            vec![item(2, 2, 1, (Some(0), 0)), item(3, 5, 3, (Some(2), 1))],
            vec![
                item(1, 5, 1, (Some(2), 2)),
                item(2, 3, 1, (Some(0), 3)),
                item(3, 8, 2, (Some(1), 1)),
            ],
        ]
    }

    fn options() -> EngineOptions {
        EngineOptions { state_slots: 4, ..EngineOptions::new(1) }
    }

    fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count).map(|_| random.signed()).collect()
    }

    fn near(found: &[f32], expected: &[f32]) -> bool {
        found.len() == expected.len()
            && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * (1.0 + b.abs()))
    }

    fn rows(items: &[BatchItem]) -> usize {
        items.iter().map(|item| item.rows).sum()
    }

    #[test]
    fn convolutions_are_what_plain_code_says_on_all_tiers() {
        let mut random = Random::new(71);
        for (channels, taps, bias) in [(16, 4, false), (40, 3, true), (5, 2, false)] {
            let weights = numbers(&mut random, taps * channels);
            let bias = bias.then(|| numbers(&mut random, channels));
            let convolution = Convolution { weights, bias, channels, taps };
            let mut plain = convolution.states(&options()).unwrap();
            let states = || convolution.states(&options()).unwrap();
            let mut all: Vec<_> = Tier::all().into_iter().map(|tier| (tier, states())).collect();
            for items in &steps() {
                let x = numbers(&mut random, rows(items) * channels);
                let expected = convolution.plainly(&mut plain, items, &x);
                for (tier, states) in &mut all {
                    let found = convolve(*tier, &convolution, states, items, &x);
                    assert!(near(&found, &expected), "{tier:?} {channels} channels, {taps} taps");
                }
            }
        }
    }

    #[test]
    fn recurrences_are_what_plain_code_says_on_all_tiers() {
        let mut random = Random::new(72);
        let shapes = [(4, 2, 12, 16, false), (2, 2, 8, 200, true), (3, 1, 5, 21, false)];
        for (heads, key_heads, key_dim, value_dim, steps_by_key) in shapes {
            for corrects in [false, true] {
                let rates = numbers(&mut random, heads).iter().map(|rate| rate.abs()).collect();
                let skips = (!corrects).then(|| numbers(&mut random, heads));
                let recurrence = Recurrence {
                    heads,
                    key_heads,
                    keys_in_turn: false,
                    key_dim,
                    value_dim,
                    rates,
                    steps_by_key,
                    corrects,
                    skips,
                };
                let states = || recurrence.states(&options()).unwrap();
                let mut plain = states();
                let mut all: Vec<_> =
                    Tier::all().into_iter().map(|tier| (tier, states())).collect();
                for items in &steps() {
                    let rows = rows(items);
                    let (keys, queries) = (
                        numbers(&mut random, rows * key_heads * key_dim),
                        numbers(&mut random, rows * key_heads * key_dim),
                    );
                    let values = numbers(&mut random, rows * heads * value_dim);
                    let each = if steps_by_key { key_dim } else { 1 };
                    let mut steps = numbers(&mut random, rows * heads * each);
                    steps.iter_mut().for_each(|step| *step = step.abs());
                    let weights = numbers(&mut random, rows * heads);
                    let of = Recurring {
                        keys: &keys[..],
                        queries: &queries,
                        values: &values,
                        steps: &steps,
                        weights: &weights,
                    };
                    let expected = recurrence.plainly(&mut plain, items, of);
                    for (tier, states) in &mut all {
                        let found = recur(*tier, &recurrence, states, items, of);
                        assert!(near(&found, &expected), "{tier:?} {heads} {value_dim} {corrects}");
                    }
                }
            }
        }
    }

    #[test]
    fn softplus_is_what_f64_says_on_all_tiers() {
        let x: Vec<f32> = (-2000..2000).map(|x| x as f32 * 0.05).collect();
        let bias = [0.25, -0.5, 3.0, 0.0, 1e-3];
        let mut expected = x.clone();
        softplus_plainly(&mut expected, &bias);
        for tier in Tier::all() {
            let mut found = x.clone();
            softplus(tier, &mut found, &bias);
            for (found, expected) in found.iter().zip(&expected) {
                // Of what is nearly nothing, the exponential has no more digits.
                let most = (1e-6 * expected.abs()).max(1e-37);
                assert!((found - expected).abs() <= most, "{tier:?}: {found:e}, {expected:e}");
            }
        }
    }
}
