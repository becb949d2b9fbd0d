//! Blocks of 256 weights, in groups of 16 or 32 with scales of their own, which share one more.

use crate::ggml::bits::{scale, scale_of_6_bits, scales_and_mins};

/// 16 bytes, each a scale below and a minimum above, 64 of codes, then `d` and `dmin` f16: `d · scale · code - dmin · min`.
/// Each half of the block has 32 bytes of codes, which are read four times, two bits at a time.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    let (params, codes) = block[..80].split_at(16);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let step = d * f32::from(params[group] & 15);
        let min = dmin * f32::from(params[group] >> 4);
        let (codes, shift) = pairs(codes, group);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = step * f32::from(code >> shift & 3) - min;
        }
    }
}

/// 32 bytes of upper bits, 64 of lower ones as in Q2_K, 12 of scales, then `d` f16: `d · scale · code`, where a code without
/// its upper bit is 4 less. Each byte of upper bits has those of 8 codes, 32 apart.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = scale(block, 108);
    let (uppers, lowers, params) = (&block[..32], &block[32..96], &block[96..108]);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let step = d * f32::from(scale_of_6_bits(params, group));
        let (lowers, shift) = pairs(lowers, group);
        let uppers = &uppers[group % 2 * 16..][..16];
        for (out, (lower, upper)) in out.iter_mut().zip(lowers.iter().zip(uppers)) {
            let code = f32::from(lower >> shift & 3);
            let less = if upper >> (group / 2) & 1 == 0 { 4.0 } else { 0.0 };
            *out = step * (code - less);
        }
    }
}

/// The 16 bytes that have two bits for each weight of a group of 16, and by how many bits those lie above the lowest.
fn pairs(codes: &[u8], group: usize) -> (&[u8], usize) {
    let (half, part) = (group / 8, group % 8);
    (&codes[32 * half + part % 2 * 16..][..16], part / 2 * 2)
}

/// `d` and `dmin` f16, 12 bytes of scales and minima, then 4 times 32 bytes, whose low halves are one group of 32 codes and
/// whose high halves the next: `d · scale · code - dmin · min`.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (params, codes) = block[4..].split_at(12);
    with_minima(block, params, codes, |_, _| 0, out);
}

/// As Q4_K, with 32 bytes before the codes that have a fifth bit for each: a byte has those of 8 codes, 32 apart.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (params, codes) = block[4..].split_at(12);
    let (uppers, codes) = codes.split_at(32);
    with_minima(block, params, codes, |group, place| (uppers[place] >> group & 1) << 4, out);
}

/// Weights of Q4_K and Q5_K; `upper` gives what a group's code has above its four bits.
fn with_minima(
    block: &[u8],
    params: &[u8],
    codes: &[u8],
    upper: impl Fn(usize, usize) -> u8,
    out: &mut [f32; 256],
) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let [steps, mins] = scales_and_mins(params.first_chunk().expect("12 bytes of a block"));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (step, min) = (d * f32::from(steps[group]), dmin * f32::from(mins[group]));
        let codes = &codes[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for (place, (out, code)) in out.iter_mut().zip(codes).enumerate() {
            *out = step * f32::from(code >> shift & 15 | upper(group, place)) - min;
        }
    }
}

/// 128 bytes of low halves, 64 of upper bits, 16 scales i8, then `d` f16: `d · scale · (code - 32)`. Each half of the block
/// has 4 groups of 32: its 64 bytes of low halves are read twice, low and then high, and its 32 bytes of upper bits four
/// times, two bits at a time.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = scale(block, 208);
    let (lows, uppers, scales) = (&block[..128], &block[128..192], &block[192..208]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, part) = (group / 4, group % 4);
        let lows = &lows[64 * half + part % 2 * 32..][..32];
        let uppers = &uppers[32 * half..][..32];
        let scales = &scales[2 * group..][..2];
        for (place, (out, (low, upper))) in out.iter_mut().zip(lows.iter().zip(uppers)).enumerate()
        {
            let code = low >> (part / 2 * 4) & 15 | (upper >> (part * 2) & 3) << 4;
            let step = d * f32::from(scales[place / 16].cast_signed());
            *out = step * (f32::from(code) - 32.0);
        }
    }
}
