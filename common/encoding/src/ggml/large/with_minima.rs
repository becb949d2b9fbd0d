//! Q4_K and Q5_K: 8 groups of 32 with scales and minima of 6 bits. `weight = d · scale · code - dmin · min`.

use super::fit::{Line, line};
use super::{BLOCK, Scales, importance, inverse, nearest, stored, sum};

const GROUP: usize = 32;
const GROUPS: usize = BLOCK / GROUP;
/// The largest scale, and minimum.
const LARGEST: f32 = 63.0;

/// Encodes a block of Q4_K.
#[inline(always)]
pub(in crate::ggml) fn q4_k(block: &[f32; BLOCK], out: &mut [u8; 144]) -> Scales {
    let (found, scales) = Block::of(block, 15.0);
    let (head, codes) = out.split_at_mut(16);
    found.write_head(head);
    found.write_low(codes);
    scales
}

/// Encodes a block of Q5_K.
#[inline(always)]
pub(in crate::ggml) fn q5_k(block: &[f32; BLOCK], out: &mut [u8; 176]) -> Scales {
    let (found, scales) = Block::of(block, 31.0);
    let (head, codes) = out.split_at_mut(16);
    let (uppers, lows) = codes.split_at_mut(32);
    found.write_head(head);
    found.write_low(lows);
    uppers.fill(0);
    for (group, codes) in found.codes.iter().enumerate() {
        uppers.iter_mut().zip(codes).for_each(|(out, code)| *out |= (code >> 4) << group);
    }
    scales
}

/// What is stored of a block.
struct Block {
    /// What scales and minima are multiples of, as bits of half precision.
    bits: Scales,
    /// A whole scale and minimum for each group.
    params: [(u8, u8); GROUPS],
    codes: [[u8; GROUP]; GROUPS],
}

impl Block {
    #[inline(always)]
    fn of(block: &[f32; BLOCK], largest: f32) -> (Block, Scales) {
        let (groups, _) = block.as_chunks::<GROUP>();
        let mut lines = [Line::default(); GROUPS];
        let mut counts = [[0f32; GROUP]; GROUPS];
        for (at, group) in groups.iter().enumerate() {
            lines[at] = line(group, largest);
            counts[at] = importance(group);
        }
        let most = |of: fn(&Line) -> f32| lines.iter().map(of).fold(0f32, f32::max);
        let units = [most(|it| it.scale) / LARGEST, most(|it| it.min) / LARGEST];
        let units = fitted(groups, &counts, &lines, units.map(|it| stored(it).0), largest);
        let [d, dmin] = units.map(stored);
        let (units, bits) = ([d.0, dmin.0], [d.1, dmin.1]);
        let mut found = Block { bits, params: [(0, 0); GROUPS], codes: [[0; GROUP]; GROUPS] };
        for (at, group) in groups.iter().enumerate() {
            let line = whole(group, &counts[at], lines[at], units, largest);
            found.params[at] = (line.scale as u8, line.min as u8);
            found.codes[at] = codes(group, line, units, largest).map(|code| code as u8);
        }
        (found, bits)
    }

    /// Scales of half precision, then 12 bytes: of the first four groups in their low 6 bits, of the others in halves and above.
    fn write_head(&self, out: &mut [u8]) {
        let [d, dmin] = self.bits.map(u16::to_le_bytes);
        out[..2].copy_from_slice(&d);
        out[2..4].copy_from_slice(&dmin);
        let packed = &mut out[4..];
        for at in 0..4 {
            let ((scale, min), (later, later_min)) = (self.params[at], self.params[at + 4]);
            packed[at] = scale | later >> 4 << 6;
            packed[at + 4] = min | later_min >> 4 << 6;
            packed[at + 8] = later & 15 | later_min << 4;
        }
    }

    /// The low halves of codes: of two groups in each 32 bytes.
    fn write_low(&self, out: &mut [u8]) {
        for (out, pair) in out.chunks_exact_mut(GROUP).zip(self.codes.as_chunks::<2>().0) {
            for (out, (low, high)) in out.iter_mut().zip(pair[0].iter().zip(&pair[1])) {
                *out = low & 15 | high << 4;
            }
        }
    }
}

/// The nearest codes by a line of whole numbers, which are multiples of `d` and `dmin`.
#[inline(always)]
fn codes(group: &[f32; GROUP], line: Line, [d, dmin]: [f32; 2], largest: f32) -> [f32; GROUP] {
    let (inverse, min) = (inverse(d * line.scale), dmin * line.min);
    let mut codes = [0f32; GROUP];
    for (code, weight) in codes.iter_mut().zip(group) {
        *code = nearest((weight + min) * inverse, 0.0, largest);
    }
    codes
}

/// What scales and minima are multiples of, fitted to the codes that the nearest multiples of `units` give.
#[inline(always)]
fn fitted(
    groups: &[[f32; GROUP]],
    counts: &[[f32; GROUP]; GROUPS],
    lines: &[Line; GROUPS],
    units: [f32; 2],
    largest: f32,
) -> [f32; 2] {
    // Sums of least squares: of products of scales and codes (`u`), of minima (`v`) and of weights (`x`).
    let (mut uu, mut uv, mut vv, mut ux, mut vx) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (at, group) in groups.iter().enumerate() {
        let (line, counts) = (near(lines[at], units), &counts[at]);
        let codes = codes(group, line, units, largest);
        let squares = sum(&codes, |at, code| counts[at] * code * code);
        let ones = sum(&codes, |at, code| counts[at] * code);
        let total = sum(counts, |_, it| it);
        let products = sum(&codes, |at, code| counts[at] * code * group[at]);
        let weighted = sum(group, |at, it| counts[at] * it);
        let [scale, min] = [line.scale, line.min].map(f64::from);
        uu += scale * scale * f64::from(squares);
        uv += scale * min * f64::from(ones);
        vv += min * min * f64::from(total);
        ux += scale * f64::from(products);
        vx += min * f64::from(weighted);
    }
    let determinant = uu * vv - uv * uv;
    let found = match (determinant > 0.0, uu > 0.0) {
        (true, _) => [(ux * vv - uv * vx) / determinant, (uv * ux - uu * vx) / determinant],
        (false, true) => [ux / uu, 0.0],
        (false, false) => return units,
    };
    // A solution of the other sign fits codes that nobody would choose then.
    if found[0] > 0.0 && found[1] >= 0.0 { found.map(|it| it as f32) } else { units }
}

/// The nearest whole scale and minimum, as multiples of `units`.
#[inline(always)]
fn near(line: Line, units: [f32; 2]) -> Line {
    let of = |number: f32, unit: f32| nearest(number * inverse(unit), 0.0, LARGEST);
    Line { scale: of(line.scale, units[0]), min: of(line.min, units[1]) }
}

/// The whole scale and minimum near `line` with the least error.
#[inline(always)]
fn whole(
    group: &[f32; GROUP],
    counts: &[f32; GROUP],
    line: Line,
    units: [f32; 2],
    largest: f32,
) -> Line {
    let near = near(line, units);
    let mut best = (f32::INFINITY, near);
    for scale in [near.scale, near.scale - 1.0, near.scale + 1.0] {
        for min in [near.min, near.min - 1.0, near.min + 1.0] {
            if !(0.0..=LARGEST).contains(&scale) || !(0.0..=LARGEST).contains(&min) {
                continue;
            }
            let tried = Line { scale, min };
            let codes = codes(group, tried, units, largest);
            let (scale, min) = (units[0] * scale, units[1] * min);
            let error = sum(&codes, |at, code| {
                let missed = scale * code - min - group[at];
                counts[at] * missed * missed
            });
            if error < best.0 {
                best = (error, tried);
            }
        }
    }
    best.1
}
