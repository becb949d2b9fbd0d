//! Blocks as codes of a byte with a scale and a bias for every 16 or 32, for kernels that multiply bytes.

use super::decode::{scale, scale_and_min};
use super::kind::GgmlType;
use crate::encoding::codec::Unpacked;

/// Weights that share a scale and a bias.
pub(super) const fn group(kind: GgmlType) -> usize {
    match kind {
        GgmlType::Q8_0 | GgmlType::Q4_0 | GgmlType::Q4K => 32,
        GgmlType::Q6K => 16,
    }
}

/// Unpacks whole blocks.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn unpack(kind: GgmlType, bytes: &[u8], out: Unpacked<'_>) {
    match kind {
        GgmlType::Q8_0 => each(bytes, out, q8_0),
        GgmlType::Q4_0 => each(bytes, out, q4_0),
        GgmlType::Q4K => each(bytes, out, q4_k),
        GgmlType::Q6K => each(bytes, out, q6_k),
    }
}

/// Scale and bias of a group.
type Param = (f32, f32);

/// Unpacks blocks of `BYTES` bytes, `CODES` codes and `GROUPS` groups.
#[inline(always)]
fn each<const BYTES: usize, const CODES: usize, const GROUPS: usize>(
    bytes: &[u8],
    out: Unpacked<'_>,
    unpack: impl Fn(&[u8; BYTES], &mut [u8; CODES]) -> [Param; GROUPS],
) {
    let (blocks, cut) = bytes.as_chunks::<BYTES>();
    let (codes, left) = out.codes.as_chunks_mut::<CODES>();
    let (scales, biases) =
        (out.scales.as_chunks_mut::<GROUPS>(), out.biases.as_chunks_mut::<GROUPS>());
    assert!(cut.is_empty() && left.is_empty(), "rows are whole blocks");
    assert!(scales.1.is_empty() && biases.1.is_empty(), "whole blocks' scales and biases");
    let (scales, biases) = (scales.0, biases.0);
    assert!(
        blocks.len() == codes.len() && blocks.len() == scales.len(),
        "as many blocks as weights"
    );
    assert_eq!(scales.len(), biases.len(), "a bias a scale");
    for ((block, codes), (scales, biases)) in
        blocks.iter().zip(codes).zip(scales.iter_mut().zip(biases))
    {
        for ((scale, bias), param) in scales.iter_mut().zip(biases).zip(unpack(block, codes)) {
            (*scale, *bias) = param;
        }
    }
}

/// Signed codes as unsigned ones: 128 more.
#[inline(always)]
fn q8_0(block: &[u8; 34], codes: &mut [u8; 32]) -> [Param; 1] {
    let d = scale(block, 0);
    for (to, code) in codes.iter_mut().zip(&block[2..]) {
        *to = code ^ 0x80;
    }
    [(d, -128.0 * d)]
}

#[inline(always)]
fn q4_0(block: &[u8; 18], codes: &mut [u8; 32]) -> [Param; 1] {
    let d = scale(block, 0);
    halves(&block[2..], codes);
    [(d, -8.0 * d)]
}

/// The low halves of 16 or 32 bytes, then their high ones.
#[inline(always)]
fn halves(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

#[inline(always)]
fn q4_k(block: &[u8; 144], codes: &mut [u8; 256]) -> [Param; 8] {
    for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        halves(bytes, codes);
    }
    scales_and_mins(block)
}

/// Those of the eight groups of a block that begins with `d`, `dmin` and their 12 bytes.
#[inline(always)]
fn scales_and_mins(block: &[u8]) -> [Param; 8] {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    std::array::from_fn(|group| {
        let (step, min) = scale_and_min(&block[4..16], group);
        (d * f32::from(step), -dmin * f32::from(min))
    })
}

#[inline(always)]
fn q6_k(block: &[u8; 210], codes: &mut [u8; 256]) -> [Param; 16] {
    let d = scale(block, 208);
    for half in 0..2 {
        let lows: &[u8; 64] = block[64 * half..].first_chunk().expect("64 bytes of a half");
        let uppers: &[u8; 32] = block[128 + 32 * half..].first_chunk().expect("32 bytes of it");
        let codes: &mut [u8; 128] =
            codes[128 * half..].first_chunk_mut().expect("half of the codes");
        for place in 0..32 {
            let (a, b, upper) = (lows[place], lows[32 + place], uppers[place]);
            codes[place] = a & 15 | (upper & 3) << 4;
            codes[32 + place] = b & 15 | (upper >> 2 & 3) << 4;
            codes[64 + place] = a >> 4 | (upper >> 4 & 3) << 4;
            codes[96 + place] = b >> 4 | (upper >> 6) << 4;
        }
    }
    std::array::from_fn(|group| {
        let step = d * f32::from(block[192 + group].cast_signed());
        (step, -32.0 * step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::encoding::{Encoding, RowsAt};

    #[test]
    fn codes_with_scales_and_biases_are_the_weights() {
        for kind in GgmlType::ALL {
            // Every byte at every place, in many blocks; what is not finite would say nothing.
            let bytes: Vec<u8> = (0..kind.block_bytes() * 257)
                .map(|at| (at * 37 + at / 256 * 11) as u8 & if at % 2 == 1 { 0xbb } else { 0xff })
                .collect();
            let count = 257 * kind.block();
            let group = group(kind);
            let mut codes = vec![0; count];
            let (mut scales, mut biases) = (vec![0.0; count / group], vec![0.0; count / group]);
            let out = Unpacked { codes: &mut codes, scales: &mut scales, biases: &mut biases };
            let parts = [(Dtype::U8, &bytes[..])];
            Encoding::Ggml(kind).unpack_rows(RowsAt::start(count), &parts, out);
            let mut weights = vec![0.0; count];
            Encoding::Ggml(kind).decode_rows(RowsAt::start(count), &parts, &mut weights);
            let mut compared = 0;
            for (at, weight) in weights.iter().enumerate() {
                let (scale, bias) = (scales[at / group], biases[at / group]);
                let (product, bias) = (f64::from(scale) * f64::from(codes[at]), f64::from(bias));
                if !weight.is_finite() {
                    continue;
                }
                compared += 1;
                let most = (product.abs() + bias.abs()) * f64::from(f32::EPSILON);
                let off = (product + bias - f64::from(*weight)).abs();
                assert!(off <= most, "{kind} at {at}: {off:e} beside {weight}");
            }
            assert!(compared > count / 2, "{kind}: {compared} of {count}");
        }
    }
}
