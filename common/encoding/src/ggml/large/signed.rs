//! Q6_K: 16 groups of 16 with signed scales of a byte. `weight = d · scale · (code - 32)`.

use super::fit::factor;
use super::{BLOCK, Scales, importance, inverse, nearest, stored, sum};

const GROUP: usize = 16;
const GROUPS: usize = BLOCK / GROUP;
/// The largest code above 0; the least is one further from it.
const LARGEST: f32 = 31.0;
/// The largest scale; the least is one further from 0.
const LARGEST_SCALE: f32 = 127.0;

/// Encodes a block of Q6_K.
#[inline(always)]
pub(in crate::ggml) fn q6_k(block: &[f32; BLOCK], out: &mut [u8; 210]) -> Scales {
    let (groups, _) = block.as_chunks::<GROUP>();
    let mut factors = [0f32; GROUPS];
    let mut counts = [[0f32; GROUP]; GROUPS];
    for (at, group) in groups.iter().enumerate() {
        factors[at] = factor(group, LARGEST);
        counts[at] = importance(group);
    }
    let magnitude = factors.iter().fold(0f32, |most, it| most.max(it.abs()));
    let largest = factors.iter().find(|it| it.abs() == magnitude).copied().unwrap_or(0.0);
    let d = stored(largest / -(LARGEST_SCALE + 1.0)).0;
    let d = stored(fitted(groups, &counts, &factors, d));
    let mut scales = [0f32; GROUPS];
    for (at, group) in groups.iter().enumerate() {
        scales[at] = whole(group, &counts[at], factors[at], d.0);
    }
    write(groups, d, &scales, out);
    [d.1, 0]
}

/// What scales are multiples of, fitted to the codes that the nearest multiples of `d` give.
#[inline(always)]
fn fitted(
    groups: &[[f32; GROUP]],
    counts: &[[f32; GROUP]; GROUPS],
    factors: &[f32; GROUPS],
    d: f32,
) -> f32 {
    let (mut squares, mut products) = (0.0, 0.0);
    for (at, group) in groups.iter().enumerate() {
        let (scale, counts) = (near(factors[at], d), &counts[at]);
        let codes = codes(group, d * scale);
        let scale = f64::from(scale);
        let square = sum(&codes, |at, code| counts[at] * code * code);
        let product = sum(&codes, |at, code| counts[at] * code * group[at]);
        squares += scale * scale * f64::from(square);
        products += scale * f64::from(product);
    }
    if squares > 0.0 { (products / squares) as f32 } else { d }
}

/// The nearest codes by that factor.
#[inline(always)]
fn codes(group: &[f32; GROUP], factor: f32) -> [f32; GROUP] {
    let inverse = inverse(factor);
    let mut codes = [0f32; GROUP];
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = nearest(weight * inverse, -LARGEST - 1.0, LARGEST);
    }
    codes
}

/// The nearest whole scale, as a multiple of `d`.
#[inline(always)]
fn near(factor: f32, d: f32) -> f32 {
    nearest(factor * inverse(d), -LARGEST_SCALE - 1.0, LARGEST_SCALE)
}

/// The whole scale near `factor` with the least error.
#[inline(always)]
fn whole(group: &[f32; GROUP], counts: &[f32; GROUP], factor: f32, d: f32) -> f32 {
    let near = near(factor, d);
    let mut best = (f32::INFINITY, near);
    for scale in [near, near - 1.0, near + 1.0] {
        if !(-LARGEST_SCALE - 1.0..=LARGEST_SCALE).contains(&scale) {
            continue;
        }
        let factor = d * scale;
        let codes = codes(group, factor);
        let error = sum(&codes, |at, code| {
            let missed = factor * code - group[at];
            counts[at] * missed * missed
        });
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

/// Low halves of codes, their upper bits, scales, and what those are multiples of.
#[inline(always)]
fn write(groups: &[[f32; GROUP]], d: (f32, u16), scales: &[f32; GROUPS], out: &mut [u8; 210]) {
    let (codes_out, tail) = out.split_at_mut(192);
    codes_out.fill(0);
    let (lows, uppers) = codes_out.split_at_mut(128);
    for (at, (group, scale)) in groups.iter().zip(scales).enumerate() {
        tail[at] = (*scale as i8).cast_unsigned();
        // Each half of the block has four parts of two groups.
        let (half, part, place) = (at / 8, at % 8 / 2, at % 2 * GROUP);
        let lows = &mut lows[64 * half + part % 2 * 32 + place..][..GROUP];
        let uppers = &mut uppers[32 * half + place..][..GROUP];
        let codes = codes(group, d.0 * scale);
        for ((low, upper), code) in lows.iter_mut().zip(uppers).zip(codes) {
            let code = (code + LARGEST + 1.0) as u8;
            *low |= (code & 15) << (part / 2 * 4);
            *upper |= code >> 4 << (part * 2);
        }
    }
    tail[GROUPS..].copy_from_slice(&d.1.to_le_bytes());
}
