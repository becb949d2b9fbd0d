//! The scale and the bias of a group that make its squared error small.
//!
//! Whoever rounds to steps between the edges of a range wastes codes on the one weight that is furthest out: with a few steps
//! fewer or more between them (then the last weights are cut off), the sum of all errors is smaller. And weights that were
//! codes before somebody widened them lie on steps of their own, of which there are fewer than this encoding has: found, they
//! stay what they are. What is found so is moved to where a line through weights over their codes lies, the least squares.
//! As llama.cpp searches for its blocks, in other steps.

use std::ops::RangeInclusive;

use super::lanes::{LANES, ROUNDER, reduce};
use crate::float::FloatType;

/// Steps between the edges of a range of weights that have been codes of 4 bits; fewer come of a narrower part of them.
const STEPS_OF_4_BITS: RangeInclusive<u8> = 8..=15;
/// The same of 4 or 5 bits, in groups of [`GROUP_OF_CODES`], which weights get that have been such codes.
const STEPS_OF_5_BITS: RangeInclusive<u8> = 8..=31;
const GROUP_OF_CODES: usize = 32;
/// How many steps fewer or more are tried, and one for each so many codes: of normal numbers the best were hardly ever
/// further away.
const MORE_STEPS: u8 = 3;
const MORE_EACH: u8 = 16;
/// How often the line through the weights is looked for.
const LINES: usize = 2;
/// How many half steps further in the near edge is tried, too, in a [`Search::Wide`].
const INWARD: u8 = 2;

/// How long to search.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// Steps from the near edge on, and the line of the best of them.
    Quick,
    /// From further in, too, and the line of each: six times as many, which miss what counts by about a tenth less.
    Wide,
}

/// A scale and a bias, and the squared error that the nearest codes make with them.
#[derive(Clone, Copy)]
struct Choice {
    scale: f32,
    bias: f32,
    error: f32,
}

/// A scale and a bias, numbers of type `params`, with an error that is no larger than that of the given ones; the group's
/// range has the edges `near` and `far`, and codes go up to `largest`. `counts` says of each weight how much its
/// squared error counts: 1 where all count the same.
///
/// Sums have one order, and no product is fused with one: equal weights and counts give equal numbers everywhere.
#[inline(always)]
pub(super) fn closest<const GROUP: usize>(
    group: &[f32; GROUP],
    counts: impl Fn(usize) -> f32 + Copy,
    (near, far): (f32, f32),
    (scale, bias): (f32, f32),
    largest: f32,
    params: FloatType,
    search: Search,
) -> (f32, f32) {
    let mut best = Choice { scale, bias, error: error(group, counts, scale, bias, largest) };
    // Nothing is better; and what is beyond the numbers of f32 cannot be compared.
    if !(best.error > 0.0 && best.error < f32::INFINITY) {
        return (scale, bias);
    }
    let about = largest as u8;
    let more = MORE_STEPS + about / MORE_EACH;
    let fewest = about.saturating_sub(more).max(1);
    let of_codes = if GROUP == GROUP_OF_CODES { STEPS_OF_5_BITS } else { STEPS_OF_4_BITS };
    let of_codes = of_codes.filter(|&steps| steps < fewest);
    let inward = if search == Search::Wide { INWARD } else { 0 };
    for halves in 0..=inward {
        let bias = params.nearest(near + (far - near) * (f32::from(halves) / (2.0 * largest)));
        for steps in (fewest..=about + more).chain(of_codes.clone()) {
            let scale = params.nearest((far - bias) / f32::from(steps));
            best.or(group, counts, scale, bias, largest);
            if search == Search::Wide {
                let (slope, start) = line(group, counts, (scale, bias), largest);
                best.or(group, counts, params.nearest(slope), params.nearest(start), largest);
            }
        }
    }
    for _ in 0..LINES {
        let (slope, start) = line(group, counts, (best.scale, best.bias), largest);
        best.or(group, counts, params.nearest(slope), params.nearest(start), largest);
    }
    (best.scale, best.bias)
}

impl Choice {
    /// That scale and bias instead, where their error is smaller.
    #[inline(always)]
    fn or<const GROUP: usize>(
        &mut self,
        group: &[f32; GROUP],
        counts: impl Fn(usize) -> f32 + Copy,
        scale: f32,
        bias: f32,
        largest: f32,
    ) {
        let error = error(group, counts, scale, bias, largest);
        // False for what is no number.
        if error < self.error && scale != 0.0 {
            *self = Choice { scale, bias, error };
        }
    }
}

/// The code that is nearest to a weight, as a number.
#[inline(always)]
fn code(weight: f32, per_step: f32, bias: f32, largest: f32) -> f32 {
    let exact = (weight - bias) * per_step;
    let exact = if exact > 0.0 { exact } else { 0.0 };
    let exact = if exact > largest { largest } else { exact };
    (exact + ROUNDER) - ROUNDER
}

/// The squared error that the nearest codes make, as it counts.
#[inline(always)]
fn error<const GROUP: usize>(
    group: &[f32; GROUP],
    counts: impl Fn(usize) -> f32,
    scale: f32,
    bias: f32,
    largest: f32,
) -> f32 {
    let per_step = 1.0 / scale;
    sum::<GROUP>(|at| {
        let missed = code(group[at], per_step, bias, largest) * scale + bias - group[at];
        missed * missed * counts(at)
    })
}

/// Slope and start of the line through the weights over their codes that misses them by the least squares, as they count.
#[inline(always)]
fn line<const GROUP: usize>(
    group: &[f32; GROUP],
    counts: impl Fn(usize) -> f32,
    (scale, bias): (f32, f32),
    largest: f32,
) -> (f32, f32) {
    let per_step = 1.0 / scale;
    let codes = group.map(|weight| code(weight, per_step, bias, largest));
    let all = sum::<GROUP>(&counts);
    let mean_code = sum::<GROUP>(|at| codes[at] * counts(at)) / all;
    let mean_weight = sum::<GROUP>(|at| group[at] * counts(at)) / all;
    let apart = |at: usize| codes[at] - mean_code;
    let squares = sum::<GROUP>(|at| apart(at) * apart(at) * counts(at));
    let slope = sum::<GROUP>(|at| apart(at) * (group[at] - mean_weight) * counts(at)) / squares;
    (slope, mean_weight - slope * mean_code)
}

/// The sum of a group's numbers, in lanes that are joined at the end. The loop over lanes is the outer one: that is the one
/// of which compilers make vectors.
#[inline(always)]
fn sum<const GROUP: usize>(number: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0f32; LANES];
    for (lane, sum) in sums.iter_mut().enumerate() {
        for chunk in 0..GROUP / LANES {
            *sum += number(chunk * LANES + lane);
        }
    }
    reduce(sums, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_search_mostly_misses_less_than_a_quick_one() {
        const LARGEST: f32 = 15.0;
        let (mut better, mut worse) = (0, 0);
        let (mut quickly, mut widely) = (0.0, 0.0);
        for seed in 0..200u32 {
            let number = |at: usize| {
                let mixed = (at as u32 + 64 * seed + 1).wrapping_mul(0x9e37_79b9);
                (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b) as f32 / u32::MAX as f32
            };
            let group: [f32; 64] =
                std::array::from_fn(|at| (0..4).map(|it| number(at * 4 + it) - 0.5).sum());
            let counts = |at: usize| 0.1 + number(at + 1000).powi(4);
            let (low, high) = group
                .iter()
                .fold((f32::MAX, f32::MIN), |(low, high), &it| (low.min(it), high.max(it)));
            let edges = if -low > high { (low, high) } else { (high, low) };
            let given = ((edges.1 - edges.0) / LARGEST, edges.0);
            let found = |search| {
                let (scale, bias) =
                    closest(&group, counts, edges, given, LARGEST, FloatType::BF16, search);
                error(&group, counts, scale, bias, LARGEST)
            };
            let (quick, wide) = (found(Search::Quick), found(Search::Wide));
            (better, worse) =
                (better + usize::from(wide < quick), worse + usize::from(wide > quick));
            (quickly, widely) = (quickly + quick, widely + wide);
        }
        // Lines from another start may end elsewhere.
        println!("{better} better, {worse} worse, {widely} of {quickly}");
        assert!(better > 4 * worse && widely < quickly);
    }
}
