//! The scale and the bias of a group that make its squared error small.
//!
//! Whoever rounds to steps between the edges of a range wastes codes on the one weight that is furthest out: with a few steps
//! fewer or more between them (then the last weights are cut off), the sum of all errors is smaller. And weights that were
//! codes before somebody widened them lie on steps of their own, of which there are fewer than this encoding has: found, they
//! stay what they are. What is found so is moved to where a line through weights over their codes lies, the least squares.
//! As llama.cpp searches for its blocks, in other steps.

use std::ops::RangeInclusive;

use super::lanes::{LANES, ROUNDER, reduce};
use crate::encoding::float::FloatType;

/// Steps between the edges of a range of weights that have been codes of 4 bits; fewer come of a narrower part of them.
const STEPS_OF_4_BITS: RangeInclusive<u8> = 8..=15;
/// How many steps fewer or more are tried, and one for each so many codes: of normal numbers the best were hardly ever
/// further away.
const MORE_STEPS: u8 = 3;
const MORE_EACH: u8 = 16;
/// How often the line through the weights is looked for.
const LINES: usize = 2;

/// A scale and a bias, and the squared error that the nearest codes make with them.
#[derive(Clone, Copy)]
struct Choice {
    scale: f32,
    bias: f32,
    error: f32,
}

/// A scale and a bias, numbers of type `params`, with an error that is no larger than that of the given ones, which lead in
/// `largest` steps from the edge `near` of the group's range to the edge `far`.
///
/// Sums have one order, and no product is fused with one: equal weights give equal numbers everywhere.
#[inline(always)]
pub(super) fn closest<const GROUP: usize>(
    group: &[f32; GROUP],
    (near, far): (f32, f32),
    (scale, bias): (f32, f32),
    largest: f32,
    params: FloatType,
) -> (f32, f32) {
    let mut best = Choice { scale, bias, error: error(group, scale, bias, largest) };
    // Nothing is better; and what is beyond the numbers of f32 cannot be compared.
    if !(best.error > 0.0 && best.error < f32::INFINITY) {
        return (scale, bias);
    }
    let attempt = |best: &mut Choice, scale: f32, bias: f32| {
        let error = error(group, scale, bias, largest);
        // False for what is no number.
        if error < best.error && scale != 0.0 {
            *best = Choice { scale, bias, error };
        }
    };
    let bias = params.nearest(near);
    let about = largest as u8;
    let more = MORE_STEPS + about / MORE_EACH;
    let counts = (about.saturating_sub(more).max(1)..=about + more)
        .chain(STEPS_OF_4_BITS.filter(|steps| steps + more < about));
    for steps in counts {
        attempt(&mut best, params.nearest((far - bias) / f32::from(steps)), bias);
    }
    for _ in 0..LINES {
        let (slope, start) = line(group, &best, largest);
        attempt(&mut best, params.nearest(slope), params.nearest(start));
    }
    (best.scale, best.bias)
}

/// The code that is nearest to a weight, as a number.
#[inline(always)]
fn code(weight: f32, per_step: f32, bias: f32, largest: f32) -> f32 {
    let exact = (weight - bias) * per_step;
    let exact = if exact > 0.0 { exact } else { 0.0 };
    let exact = if exact > largest { largest } else { exact };
    (exact + ROUNDER) - ROUNDER
}

/// The squared error that the nearest codes make.
#[inline(always)]
fn error<const GROUP: usize>(group: &[f32; GROUP], scale: f32, bias: f32, largest: f32) -> f32 {
    let per_step = 1.0 / scale;
    let mut sums = [0f32; LANES];
    for chunk in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let missed = code(chunk[lane], per_step, bias, largest) * scale + bias - chunk[lane];
            sums[lane] += missed * missed;
        }
    }
    reduce(sums, |a, b| a + b)
}

/// Slope and start of the line through the weights over their codes that misses them by the least squares.
#[inline(always)]
fn line<const GROUP: usize>(group: &[f32; GROUP], of: &Choice, largest: f32) -> (f32, f32) {
    let per_step = 1.0 / of.scale;
    let (mut codes, mut weights) = ([0f32; LANES], [0f32; LANES]);
    for chunk in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            codes[lane] += code(chunk[lane], per_step, of.bias, largest);
            weights[lane] += chunk[lane];
        }
    }
    let mean = |sums: [f32; LANES]| reduce(sums, |a, b| a + b) / GROUP as f32;
    let (mean_code, mean_weight) = (mean(codes), mean(weights));
    let (mut squares, mut products) = ([0f32; LANES], [0f32; LANES]);
    for chunk in group.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let apart = code(chunk[lane], per_step, of.bias, largest) - mean_code;
            squares[lane] += apart * apart;
            products[lane] += apart * (chunk[lane] - mean_weight);
        }
    }
    let slope = reduce(products, |a, b| a + b) / reduce(squares, |a, b| a + b);
    (slope, mean_weight - slope * mean_code)
}
