//! What the bytes of one block mean, as ggml's own `dequantize_row_*` has it: f16 scales are widened, and all is computed
//! in f32, from left to right.

use super::kind::GgmlType;
use crate::encoding::float::element::f16;

/// Fills `out` with the weights of whole blocks.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        GgmlType::Q8_0 => each(bytes, out, q8_0),
        GgmlType::Q4_0 => each(bytes, out, q4_0),
        GgmlType::Q4K => each(bytes, out, q4_k),
        GgmlType::Q6K => each(bytes, out, q6_k),
    }
}

/// Decodes blocks of `BYTES` bytes and `WEIGHTS` weights.
fn each<const BYTES: usize, const WEIGHTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    let (blocks, cut) = bytes.as_chunks::<BYTES>();
    let (weights, left) = out.as_chunks_mut::<WEIGHTS>();
    assert!(cut.is_empty() && left.is_empty(), "rows are whole blocks");
    assert_eq!(blocks.len(), weights.len(), "as many blocks as weights");
    blocks.iter().zip(weights).for_each(|(block, weights)| decode(block, weights));
}

/// The f16 at the byte `at` of a block.
pub(super) fn scale(block: &[u8], at: usize) -> f32 {
    f16(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// `d` f16, then codes i8: `d · code`.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    for (out, &code) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(code.cast_signed());
    }
}

/// `d` f16, then 16 bytes, whose low halves are the first 16 codes and whose high halves the others: `d · (code - 8)`.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = scale(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = d * (f32::from(byte & 15) - 8.0);
        *high = d * (f32::from(byte >> 4) - 8.0);
    }
}

/// `d` and `dmin` f16, 12 bytes of scales and minima, then 4 times 32 bytes, whose low halves are one group of 32 codes and
/// whose high halves the next: `d · scale · code - dmin · min`.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let (params, codes) = block[4..].split_at(12);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (step, min) = scale_and_min(params, group);
        let (step, min) = (d * f32::from(step), dmin * f32::from(min));
        let codes = &codes[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for (out, code) in out.iter_mut().zip(codes) {
            *out = step * f32::from(code >> shift & 15) - min;
        }
    }
}

/// The 6 bits of scale and of minimum of a group of Q4_K: the first four groups have theirs in the low bits of bytes 0 to 7,
/// the others the halves of bytes 8 to 11, and above them the top bits of bytes 0 to 7.
pub(super) fn scale_and_min(params: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (params[group] & 63, params[group + 4] & 63);
    }
    let low = params[group + 4];
    (low & 15 | params[group - 4] >> 6 << 4, low >> 4 | params[group] >> 6 << 4)
}

/// 128 bytes of low halves, 64 of upper bits, 16 scales i8, then `d` f16: `d · scale · (code - 32)`. Each half of the block
/// has 4 groups of 32: its 64 bytes of low halves are read twice, low and then high, and its 32 bytes of upper bits four
/// times, two bits at a time.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A block whose bytes are `(37 · i + 11) mod 256`, with f16 numbers at some places.
    fn block(bytes: usize, numbers: &[(usize, u16)]) -> Vec<u8> {
        let mut block: Vec<u8> = (0..bytes).map(|at| (37 * at + 11) as u8).collect();
        for &(at, bits) in numbers {
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        block
    }

    /// The weights at some places, and the sum of all, as the package `gguf` gives them.
    #[track_caller]
    fn check(kind: GgmlType, numbers: &[(usize, u16)], expected: &[(usize, f32)], sum: f32) {
        let block = block(kind.block_bytes(), numbers);
        let mut out = vec![0.0; 2 * kind.block()];
        decode(kind, &[&block[..], &block].concat(), &mut out);
        let (first, second) = out.split_at(kind.block());
        assert_eq!(first, second, "{kind}");
        for &(at, weight) in expected {
            assert_eq!(first[at], weight, "{kind} at {at}");
        }
        assert_eq!(first.iter().sum::<f32>(), sum, "{kind}");
    }

    const QUARTER: u16 = 0x3400;
    const EIGHTH: u16 = 0x3000;

    #[test]
    fn blocks_of_32_are_what_ggml_says() {
        let d = [(0, QUARTER)];
        let weights = [(0, 21.25), (1, 30.5), (15, -32.0), (16, -22.75), (31, -12.0)];
        check(GgmlType::Q8_0, &d, &weights, -44.0);
        let weights = [(0, -0.75), (1, 0.5), (15, -2.0), (16, -0.75), (31, 0.0)];
        check(GgmlType::Q4_0, &d, &weights, -5.25);
    }

    #[test]
    fn blocks_of_256_are_what_ggml_says() {
        let q4_k = [
            [(0, 78.875), (1, -6.375), (15, 40.125), (16, 78.875), (31, 40.125), (32, 2.0)],
            [(33, 5.0), (64, 105.125), (127, 20.25), (128, 105.75), (200, 34.625), (255, 12.125)],
        ];
        check(GgmlType::Q4K, &[(0, QUARTER), (2, EIGHTH)], &q4_k.concat(), 13_610.0);
        let q6_k = [
            [(0, -357.75), (1, 424.0), (15, -79.5), (16, -108.0), (31, -24.0), (32, 57.75)],
            [(33, -168.0), (64, -760.0), (127, 375.0), (128, -87.75), (200, 272.25), (255, -15.0)],
        ];
        check(GgmlType::Q6K, &[(208, QUARTER)], &q6_k.concat(), 1153.0);
    }

    #[test]
    fn documented_codes_decode() {
        let codes: Vec<u8> = (0..16).map(|j| (j / 2 * 0x11) as u8 + 0x80).collect();
        let mut out = [0.0; 32];
        decode(GgmlType::Q4_0, &[&[0x00, 0x40], &codes[..]].concat(), &mut out);
        assert_eq!(out[..6], [-16.0, -16.0, -14.0, -14.0, -12.0, -12.0]);
        assert_eq!(out[16..18], [0.0, 0.0]);
    }
}
