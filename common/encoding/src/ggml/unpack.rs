//! Blocks as codes of a byte with a scale and a bias for every 16 or 32, for kernels that multiply bytes.

use std::array::from_fn;

use super::bits::{UNEVEN, half_power, scale, scale_of_6_bits, scale_of_xs, scales_and_mins};
use super::kind::GgmlType;
use crate::codec::Unpacked;
use crate::narrow::twice_and_12;

/// Weights that share a scale and a bias.
pub(super) const fn group(kind: GgmlType) -> usize {
    match kind {
        GgmlType::Q2K | GgmlType::Q3K | GgmlType::Q6K => 16,
        _ => 32,
    }
}

/// The largest code; of places in a table, what the largest stands for.
pub(super) const fn largest_code(kind: GgmlType) -> u8 {
    match kind {
        GgmlType::Q2K => 3,
        GgmlType::Q3K => 7,
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4K => 15,
        GgmlType::Mxfp4 => 24,
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5K => 31,
        GgmlType::Q6K => 63,
        GgmlType::Q8_0 | GgmlType::Iq4Nl | GgmlType::Iq4Xs => u8::MAX,
    }
}

/// Unpacks whole blocks.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn unpack(kind: GgmlType, bytes: &[u8], out: Unpacked<'_>) {
    match kind {
        GgmlType::Q4_0 => each(bytes, out, q4_0),
        GgmlType::Q4_1 => each(bytes, out, q4_1),
        GgmlType::Q5_0 => each(bytes, out, q5_0),
        GgmlType::Q5_1 => each(bytes, out, q5_1),
        GgmlType::Q8_0 => each(bytes, out, q8_0),
        GgmlType::Q2K => each(bytes, out, q2_k),
        GgmlType::Q3K => each(bytes, out, q3_k),
        GgmlType::Q4K => each(bytes, out, q4_k),
        GgmlType::Q5K => each(bytes, out, q5_k),
        GgmlType::Q6K => each(bytes, out, q6_k),
        GgmlType::Iq4Nl => each(bytes, out, iq4_nl),
        GgmlType::Iq4Xs => each(bytes, out, iq4_xs),
        GgmlType::Mxfp4 => each(bytes, out, mxfp4),
    }
}

/// The scales of a block's groups, and their biases.
type Params<const GROUPS: usize> = [[f32; GROUPS]; 2];

/// Unpacks blocks of `BYTES` bytes, `CODES` codes and `GROUPS` groups.
#[inline(always)]
fn each<const BYTES: usize, const CODES: usize, const GROUPS: usize>(
    bytes: &[u8],
    out: Unpacked<'_>,
    unpack: impl Fn(&[u8; BYTES], &mut [u8; CODES]) -> Params<GROUPS>,
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
        [*scales, *biases] = unpack(block, codes);
    }
}

/// The scales of groups, and biases that are so often these.
#[inline(always)]
fn centred<const GROUPS: usize>(centre: f32, scale: impl Fn(usize) -> f32) -> Params<GROUPS> {
    let scales: [f32; GROUPS] = from_fn(scale);
    [scales, from_fn(|group| centre * scales[group])]
}

/// Signed codes as unsigned ones: 128 more.
#[inline(always)]
fn q8_0(block: &[u8; 34], codes: &mut [u8; 32]) -> Params<1> {
    let d = scale(block, 0);
    for (to, code) in codes.iter_mut().zip(&block[2..]) {
        *to = code ^ 0x80;
    }
    [[d], [-128.0 * d]]
}

#[inline(always)]
fn q4_0(block: &[u8; 18], codes: &mut [u8; 32]) -> Params<1> {
    let d = scale(block, 0);
    halves(&block[2..], codes);
    [[d], [-8.0 * d]]
}

#[inline(always)]
fn q4_1(block: &[u8; 20], codes: &mut [u8; 32]) -> Params<1> {
    halves(&block[4..], codes);
    [[scale(block, 0)], [scale(block, 2)]]
}

#[inline(always)]
fn q5_0(block: &[u8; 22], codes: &mut [u8; 32]) -> Params<1> {
    let d = scale(block, 0);
    fifths(&block[2..], codes);
    [[d], [-16.0 * d]]
}

#[inline(always)]
fn q5_1(block: &[u8; 24], codes: &mut [u8; 32]) -> Params<1> {
    fifths(&block[4..], codes);
    [[scale(block, 0)], [scale(block, 2)]]
}

/// 4 bytes of fifth bits, then 16 of halves.
#[inline(always)]
fn fifths(bytes: &[u8], codes: &mut [u8; 32]) {
    let (uppers, lowers) = bytes.split_at(4);
    halves(lowers, codes);
    for (place, code) in codes.iter_mut().enumerate() {
        *code |= (uppers[place / 8] >> (place % 8) & 1) << 4;
    }
}

#[inline(always)]
fn iq4_nl(block: &[u8; 18], codes: &mut [u8; 32]) -> Params<1> {
    let d = scale(block, 0);
    uneven(&block[2..], codes);
    [[d], [-128.0 * d]]
}

#[inline(always)]
fn iq4_xs(block: &[u8; 136], codes: &mut [u8; 256]) -> Params<8> {
    let d = scale(block, 0);
    for (bytes, codes) in block[8..].chunks_exact(16).zip(codes.chunks_exact_mut(32)) {
        uneven(bytes, codes);
    }
    centred(-128.0, |group| d * f32::from(scale_of_xs(block, group)))
}

/// The numbers of the table at the places that the halves of 16 bytes are, 128 more.
#[inline(always)]
fn uneven(bytes: &[u8], codes: &mut [u8]) {
    halves(bytes, codes);
    codes.iter_mut().for_each(|code| *code = (UNEVEN[usize::from(*code)] as u8) ^ 0x80);
}

/// Twice the number that a code says, 12 more.
#[inline(always)]
fn mxfp4(block: &[u8; 17], codes: &mut [u8; 32]) -> Params<1> {
    halves(&block[1..], codes);
    codes.iter_mut().for_each(|code| *code = twice_and_12(*code));
    let half = half_power(block[0]);
    [[half], [-12.0 * half]]
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
fn q4_k(block: &[u8; 144], codes: &mut [u8; 256]) -> Params<8> {
    for (bytes, codes) in block[16..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        halves(bytes, codes);
    }
    params(block)
}

/// Those of the eight groups of a block that begins with `d`, `dmin` and their 12 bytes.
#[inline(always)]
fn params(block: &[u8]) -> Params<8> {
    let (d, dmin) = (scale(block, 0), scale(block, 2));
    let [steps, mins] = scales_and_mins(block[4..].first_chunk().expect("12 bytes of a block"));
    [from_fn(|group| d * f32::from(steps[group])), from_fn(|group| -dmin * f32::from(mins[group]))]
}

/// As [`q4_k`], with a fifth bit: a byte has those of 8 codes, 32 apart.
#[inline(always)]
fn q5_k(block: &[u8; 176], codes: &mut [u8; 256]) -> Params<8> {
    let uppers: &[u8; 32] = block[16..].first_chunk().expect("32 bytes of a block");
    for (bytes, codes) in block[48..].chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        halves(bytes, codes);
    }
    for (group, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, upper) in codes.iter_mut().zip(uppers) {
            *code |= (upper >> group & 1) << 4;
        }
    }
    params(block)
}

#[inline(always)]
fn q2_k(block: &[u8; 84], codes: &mut [u8; 256]) -> Params<16> {
    let (d, dmin) = (scale(block, 80), scale(block, 82));
    quarters(&block[16..80], codes);
    let steps = from_fn(|group| d * f32::from(block[group] & 15));
    [steps, from_fn(|group| -dmin * f32::from(block[group] >> 4))]
}

#[inline(always)]
fn q3_k(block: &[u8; 110], codes: &mut [u8; 256]) -> Params<16> {
    let d = scale(block, 108);
    let uppers: &[u8; 32] = block.first_chunk().expect("32 bytes of a block");
    quarters(&block[32..96], codes);
    for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, upper) in codes.iter_mut().zip(uppers) {
            *code |= (upper >> part & 1) << 2;
        }
    }
    centred(-4.0, |group| d * f32::from(scale_of_6_bits(&block[96..108], group)))
}

/// Two bits of each of 32 bytes, the lowest of all first; then of the next 32.
#[inline(always)]
fn quarters(bytes: &[u8], codes: &mut [u8; 256]) {
    let halves = bytes.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<128>().0);
    for (bytes, codes) in halves {
        for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = byte >> (2 * part) & 3;
            }
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8; 210], codes: &mut [u8; 256]) -> Params<16> {
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
    centred(-32.0, |group| d * f32::from(block[192 + group].cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::{Encoding, RowsAt};

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
