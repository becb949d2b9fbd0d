//! Blocks whose codes of 4 bits are places in a table.

use crate::ggml::bits::{UNEVEN, half_power, halves, scale, scale_of_xs};
use crate::narrow::twice_and_12;

/// `d` f16, then 16 bytes of codes: `d · table[code]`.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves(&block[2..], out, |_, code| d * f32::from(UNEVEN[usize::from(code)]));
}

/// `d` f16, 2 bytes with the upper two bits of 8 scales, 4 with the lower four, then 16 bytes of codes for each group of 32:
/// `d · (scale - 32) · table[code]`.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = scale(block, 0);
    let codes = &block[8..];
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let step = d * f32::from(scale_of_xs(block, group));
        let codes = &codes[16 * group..][..16];
        halves(codes, out, |_, code| step * f32::from(UNEVEN[usize::from(code)]));
    }
}

/// An exponent `e`, then 16 bytes of codes: `2^(e - 127) · E2M1[code]`, as half the power times twice the number. The largest
/// exponent is one like the others, and no sign of a number that is none.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let half = half_power(block[0]);
    halves(&block[1..], out, |_, code| half * (f32::from(twice_and_12(code)) - 12.0));
}
