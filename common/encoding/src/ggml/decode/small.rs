//! Blocks of 32 weights.

use crate::ggml::bits::{halves, scale};

/// `d` f16, then 16 bytes of codes: `d · (code - 8)`.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    halves(&block[2..], out, |_, code| d * (f32::from(code) - 8.0));
}

/// `d` and `m` f16, then 16 bytes of codes: `d · code + m`.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    halves(&block[4..], out, |_, code| d * f32::from(code) + m);
}

/// `d` f16, 4 bytes of upper bits, the first code's the lowest, then 16 bytes of the lower 4: `d · (code - 16)`.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    let (uppers, lowers) = block[2..].split_at(4);
    halves(lowers, out, |place, low| d * (f32::from(low | upper(uppers, place)) - 16.0));
}

/// `d` and `m` f16, then bits as in Q5_0: `d · code + m`.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (scale(block, 0), scale(block, 2));
    let (uppers, lowers) = block[4..].split_at(4);
    halves(lowers, out, |place, low| d * f32::from(low | upper(uppers, place)) + m);
}

/// The fifth bit of a code, in its place.
fn upper(uppers: &[u8], place: usize) -> u8 {
    (uppers[place / 8] >> (place % 8) & 1) << 4
}

/// `d` f16, then codes i8: `d · code`.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (out, &code) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(code.cast_signed());
    }
}
