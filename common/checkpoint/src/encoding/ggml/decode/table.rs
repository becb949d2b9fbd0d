//! Blocks whose codes of 4 bits are places in a table.

use super::bits::{halves, scale};

/// The numbers of IQ4_NL and IQ4_XS: closer to each other around zero, where most weights are.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the numbers of the format E2M1.
const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d` f16, then 16 bytes of codes: `d · table[code]`.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves(&block[2..], out, |_, code| d * f32::from(UNEVEN[usize::from(code)]));
}

/// `d` f16, 2 bytes with the upper two bits of 8 scales, 4 with the lower four, then 16 bytes of codes for each group of 32:
/// `d · (scale - 32) · table[code]`.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = scale(block, 0);
    let uppers = u16::from_le_bytes([block[2], block[3]]);
    let (lowers, codes) = block[4..].split_at(4);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let low = lowers[group / 2] >> (group % 2 * 4) & 15;
        let high = (uppers >> (2 * group) & 3) as u8;
        let step = d * f32::from((low | high << 4).cast_signed() - 32);
        let codes = &codes[16 * group..][..16];
        halves(codes, out, |_, code| step * f32::from(UNEVEN[usize::from(code)]));
    }
}

/// An exponent `e`, then 16 bytes of codes: `2^(e - 127) · E2M1[code]`, as half the power times twice the number. The largest
/// exponent is one like the others, and no sign of a number that is none.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let half = match block[0] {
        tiny @ (0 | 1) => f32::from_bits(0x0020_0000 << tiny), // Subnormal: 2^-128 and 2^-127.
        e => f32::from_bits(u32::from(e - 1) << 23),
    };
    halves(&block[1..], out, |_, code| half * f32::from(TWICE_E2M1[usize::from(code)]));
}
