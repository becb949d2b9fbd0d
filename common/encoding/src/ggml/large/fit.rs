//! What fits one group of weights best: a line through its codes.

use super::{importance, inverse, nearest, sum};

/// Ranges that are tried for codes: that many, each so many codes wider than the one before.
const RANGES: usize = 11;
const WIDER: f32 = 0.2;

/// A group's `scale · code - min`, both from 0 on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Line {
    pub(super) scale: f32,
    pub(super) min: f32,
}

/// The line for codes from 0 to `largest`.
#[inline(always)]
pub(super) fn line<const GROUP: usize>(group: &[f32; GROUP], largest: f32) -> Line {
    let low = group.iter().fold(0f32, |low, &it| if it < low { it } else { low });
    let high = group.iter().fold(f32::MIN, |high, &it| if it > high { it } else { high });
    if high <= low {
        return Line { scale: 0.0, min: -low };
    }
    let counts = importance(group);
    let total = sum(&counts, |_, it| it);
    let weighted = sum(group, |at, it| counts[at] * it);
    let mut best = (f32::INFINITY, Line { scale: (high - low) / largest, min: -low });
    for range in 0..RANGES {
        let inverse = (largest - 1.0 + WIDER * range as f32) / (high - low);
        if !inverse.is_finite() {
            break;
        }
        let mut codes = [0f32; GROUP];
        for (code, weight) in codes.iter_mut().zip(group) {
            *code = nearest((weight - low) * inverse, 0.0, largest);
        }
        let ones = sum(&codes, |at, code| counts[at] * code);
        let squares = sum(&codes, |at, code| counts[at] * code * code);
        let products = sum(&codes, |at, code| counts[at] * code * group[at]);
        let line = solved(total, weighted, ones, squares, products);
        let error = sum(&codes, |at, code| {
            let missed = line.scale * code - line.min - group[at];
            counts[at] * missed * missed
        });
        if error < best.0 {
            best = (error, line);
        }
    }
    best.1
}

/// The line of least squares through these sums, with a minimum from 0 on.
#[inline(always)]
fn solved(total: f32, weighted: f32, ones: f32, squares: f32, products: f32) -> Line {
    let [total, weighted, ones, squares, products] =
        [total, weighted, ones, squares, products].map(f64::from);
    let determinant = total * squares - ones * ones;
    let scale = (total * products - ones * weighted) / determinant;
    let min = (ones * products - squares * weighted) / determinant;
    // Where all codes are one, or the minimum would be below 0: a line through 0.
    let is_line = determinant > 0.0 && min >= 0.0 && scale >= 0.0;
    let through_zero = if squares > 0.0 { (products / squares).max(0.0) } else { 0.0 };
    match is_line {
        true => Line { scale: scale as f32, min: min as f32 },
        false => Line { scale: through_zero as f32, min: 0.0 },
    }
}

/// The factor for codes from `-largest - 1` to `largest`, which may have either sign.
#[inline(always)]
pub(super) fn factor<const GROUP: usize>(group: &[f32; GROUP], largest: f32) -> f32 {
    let magnitude = group.iter().fold(0f32, |most, it| most.max(it.abs()));
    let first = group.iter().find(|it| it.abs() == magnitude).copied().unwrap_or(0.0);
    let counts = importance(group);
    let mut best = (f32::INFINITY, 0.0);
    for range in 0..RANGES {
        // The largest magnitude has the code that is one further from 0, or one near it.
        let inverse = -(largest + WIDER * range as f32) * inverse(first);
        let mut codes = [0f32; GROUP];
        for (code, weight) in codes.iter_mut().zip(group) {
            *code = nearest(weight * inverse, -largest - 1.0, largest);
        }
        let squares = sum(&codes, |at, code| counts[at] * code * code);
        let products = sum(&codes, |at, code| counts[at] * code * group[at]);
        let factor = if squares > 0.0 { products / squares } else { 0.0 };
        let error = sum(&codes, |at, code| {
            let missed = factor * code - group[at];
            counts[at] * missed * missed
        });
        if error < best.0 {
            best = (error, factor);
        }
    }
    best.1
}
