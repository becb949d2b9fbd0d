//! From plain numbers to codes, scales and biases.
//!
//! As in MLX, the edge of a group's range that has the larger magnitude becomes the bias, and the
//! scale leads from it to the other edge, so a scale may be negative. Unlike MLX, codes are chosen for
//! the scale and the bias as they are stored: the scale is rounded away from zero, so that the codes
//! span the whole range, and no weight in 8 bits is further than half a step from what it was. Codes of
//! fewer have [`closest`]'s scale and bias instead, where those make the squared error smaller.
//!
//! Only sums, products, divisions and comparisons of IEEE 754, none of them fused, in an order that does not depend on the
//! machine: equal weights, whose errors count the same, give equal bytes everywhere.

use super::closest::{Search, closest};
use super::format::Affine;
use super::lanes::{LANES, ROUNDER, reduce};
use crate::encode_error::EncodeError;
use crate::float::FloatType;

/// Changes whenever the same weights give other bytes than before.
pub const ENCODER_VERSION: u32 = 3;
/// Changes whenever the same weights give other bytes than before where their errors do not all count the same, and those
/// where they do stay.
pub const WEIGHED_VERSION: u32 = 2;

/// Rows packed, as three tensors of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packed {
    /// The codes of the rows, little-endian.
    pub codes: Vec<u8>,
    /// One scale per group, little-endian.
    pub scales: Vec<u8>,
    /// One bias per group, little-endian.
    pub biases: Vec<u8>,
}

/// Where to put which parts of what is encoded.
#[derive(Debug, Default)]
pub struct Sink<'a> {
    /// The codes of the rows, little-endian.
    pub codes: Option<&'a mut [u8]>,
    /// One scale per group, little-endian.
    pub scales: Option<&'a mut [u8]>,
    /// One bias per group, little-endian.
    pub biases: Option<&'a mut [u8]>,
}

/// Encodes whole rows (or whole groups), with scales and biases of type `params`.
///
/// # Errors
/// [`EncodeError`] for a weight that is not finite, or too large for `params`.
///
/// # Panics
/// If `values` are not whole groups.
pub fn encode_rows(
    values: &[f32],
    format: Affine,
    params: FloatType,
) -> Result<Packed, EncodeError> {
    let groups = values.len() / format.group();
    let mut packed = Packed {
        codes: vec![0; groups * format.group_bytes()],
        scales: vec![0; groups * params.bytes()],
        biases: vec![0; groups * params.bytes()],
    };
    let Packed { codes, scales, biases } = &mut packed;
    let sink = Sink { codes: Some(codes), scales: Some(scales), biases: Some(biases) };
    encode_into(values, None, format, params, sink)?;
    Ok(packed)
}

/// As [`encode_rows`], into slices that are just long enough; `counts` says of each value how much its squared error counts.
///
/// # Errors
/// As [`encode_rows`].
///
/// # Panics
/// If `values` are not whole groups, or `counts` not as many.
pub fn encode_into(
    values: &[f32],
    counts: Option<&[f32]>,
    format: Affine,
    params: FloatType,
    sink: Sink<'_>,
) -> Result<(), EncodeError> {
    assert!(values.len().is_multiple_of(format.group()), "rows are whole groups");
    assert!(counts.is_none_or(|counts| counts.len() == values.len()), "a count for each");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, as was just seen.
        return unsafe { encode_avx2(values, counts, format, params, sink) };
    }
    encode_portable(values, counts, format, params, sink)
}

/// The same operations in wider registers: the same bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(
    values: &[f32],
    counts: Option<&[f32]>,
    format: Affine,
    params: FloatType,
    sink: Sink<'_>,
) -> Result<(), EncodeError> {
    encode_portable(values, counts, format, params, sink)
}

/// Always inlined, so that the compiler makes one for every kind of register.
#[inline(always)]
fn encode_portable(
    values: &[f32],
    counts: Option<&[f32]>,
    format: Affine,
    params: FloatType,
    sink: Sink<'_>,
) -> Result<(), EncodeError> {
    match format.group() {
        32 => encode_groups::<32>(values, counts, format, params, sink),
        64 => encode_groups::<64>(values, counts, format, params, sink),
        _ => encode_groups::<128>(values, counts, format, params, sink),
    }
}

#[inline(always)]
fn encode_groups<const GROUP: usize>(
    values: &[f32],
    counts: Option<&[f32]>,
    format: Affine,
    params: FloatType,
    mut sink: Sink<'_>,
) -> Result<(), EncodeError> {
    let (groups, _) = values.as_chunks::<GROUP>();
    let code_bytes = format.group_bytes();
    let largest = f32::from(format.largest_code());
    for (index, group) in groups.iter().enumerate() {
        let (low, high) = edges(group);
        if !(low.is_finite() && high.is_finite()) {
            return Err(not_finite(group, index * GROUP));
        }
        let (bias, far) = if low.abs() > high.abs() { (low, high) } else { (high, low) };
        let stored = scale_and_bias(bias, far, largest, params);
        let Some(mut stored) = stored else {
            return Err(EncodeError::TooLarge { index: index * GROUP, value: bias, params });
        };
        if format.bits() < 8 {
            let edges = (bias, far);
            stored = closest(group, |_| 1.0, edges, stored, largest, params, Search::Quick);
            if let Some(counts) = counts {
                // No worse than without knowing what counts.
                let counts = &counts[index * GROUP..][..GROUP];
                let of = |at| counts[at];
                stored = closest(group, of, edges, stored, largest, params, Search::Wide);
            }
        }
        let (scale, bias) = stored;
        if let Some(scales) = &mut sink.scales {
            params.store(scale, scales, index);
        }
        if let Some(biases) = &mut sink.biases {
            params.store(bias, biases, index);
        }
        if let Some(codes) = &mut sink.codes {
            let codes = &mut codes[index * code_bytes..][..code_bytes];
            let unpacked = codes_of(group, scale, bias, largest);
            match format.bits() {
                8 => codes.copy_from_slice(&unpacked),
                4 => {
                    let (pairs, _) = unpacked.as_chunks::<2>();
                    codes
                        .iter_mut()
                        .zip(pairs)
                        .for_each(|(out, pair)| *out = pair[0] | pair[1] << 4);
                }
                bits => {
                    let (eights, _) = unpacked.as_chunks::<8>();
                    for (out, eight) in codes.chunks_exact_mut(bits).zip(eights) {
                        out.copy_from_slice(&packed(eight, bits)[..bits]);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The smallest and the largest number of a group; one of them is not finite if any number is not.
#[inline(always)]
fn edges<const GROUP: usize>(group: &[f32; GROUP]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let mut odd = [0f32; LANES]; // Becomes NaN where a number is NaN; comparisons would pass it over.
    let (chunks, _) = group.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let value = chunk[lane];
            low[lane] = if value < low[lane] { value } else { low[lane] };
            high[lane] = if value > high[lane] { value } else { high[lane] };
            odd[lane] += value * 0.0;
        }
    }
    let smallest = reduce(low, |a, b| if b < a { b } else { a });
    let largest = reduce(high, |a, b| if b > a { b } else { a });
    let odd = reduce(odd, |a, b| a + b);
    (smallest + odd, largest + odd)
}

/// The scale and the bias as stored, so that codes from 0 to `largest` reach from `near` to `far`.
#[inline(always)]
fn scale_and_bias(near: f32, far: f32, largest: f32, params: FloatType) -> Option<(f32, f32)> {
    let bias = params.round_away(f64::from(near))?;
    let span = f64::from(far) - f64::from(bias);
    let scale = params.round_away(span / f64::from(largest))?;
    Some((scale, bias))
}

/// The nearest code of every weight of a group.
#[inline(always)]
fn codes_of<const GROUP: usize>(
    group: &[f32; GROUP],
    scale: f32,
    bias: f32,
    largest: f32,
) -> [u8; GROUP] {
    let step = if scale == 0.0 { 1.0 } else { scale }; // All weights are the bias then.
    let mut codes = [0; GROUP];
    for (code, weight) in codes.iter_mut().zip(group) {
        let exact = (weight - bias) / step;
        let exact = if exact > 0.0 { exact } else { 0.0 };
        let exact = if exact > largest { largest } else { exact };
        *code = (exact + ROUNDER).to_bits() as u8;
    }
    codes
}

/// Eight codes of so many bits as a little-endian bit stream, which as many bytes have.
fn packed(codes: &[u8; 8], bits: usize) -> [u8; 8] {
    let place = |(at, &code): (usize, &u8)| u64::from(code) << (at * bits);
    codes.iter().enumerate().map(place).fold(0, |stream, code| stream | code).to_le_bytes()
}

fn not_finite(group: &[f32], start: usize) -> EncodeError {
    let inside = group.iter().position(|value| !value.is_finite()).unwrap_or(0);
    EncodeError::NotFinite { index: start + inside, value: group[inside] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was made once is found again by its version: who changes these bytes changes one of both numbers.
    #[test]
    fn bytes_change_with_their_versions() {
        let mixed = |at: u32| (at ^ at >> 15).wrapping_mul(0x85eb_ca6b);
        let number = |at: u32| mixed(at.wrapping_mul(0x9e37_79b9)) as f32 / u32::MAX as f32;
        let normal = |at: u32| (0..4).map(|it| number(at * 4 + it) - 0.5).sum::<f32>();
        // Half of them on steps of their own.
        let weight = |at: u32| match at / 128 % 2 {
            0 => normal(at),
            _ => (normal(at) * 10.0).round() * (0.1 + (at / 32 % 7) as f32 * 0.01),
        };
        let values: Vec<f32> = (1..=128 * 24).map(weight).collect();
        let counts: Vec<f32> = (1..=values.len() as u32).map(|at| 0.1 + number(at)).collect();
        let (mut alike, mut counted) = (Vec::new(), Vec::new());
        for bits in [2, 3, 4, 5, 6, 8] {
            for format in [32, 64, 128].map(|group| Affine::new(bits, group).unwrap()) {
                for (counts, all) in [(None, &mut alike), (Some(&counts[..]), &mut counted)] {
                    let mut packed = encode_rows(&values, format, FloatType::BF16).unwrap();
                    let Packed { codes, scales, biases } = &mut packed;
                    let sink =
                        Sink { codes: Some(codes), scales: Some(scales), biases: Some(biases) };
                    encode_into(&values, counts, format, FloatType::BF16, sink).unwrap();
                    let parts = [&packed.codes, &packed.scales, &packed.biases];
                    parts.iter().for_each(|part| all.extend_from_slice(part));
                }
            }
        }
        let seen = [&alike, &counted].map(|bytes| blake3::hash(bytes).to_hex()[..16].to_owned());
        let versions = (ENCODER_VERSION, WEIGHED_VERSION);
        assert_eq!(
            (versions, seen),
            ((3, 2), ["5e1aaf2bf414c584", "b397a62c64424277"].map(str::to_owned))
        );
    }

    #[test]
    fn wider_registers_give_the_same_bytes() {
        let values: Vec<f32> = (0..128 * 40u32)
            .map(|index| f32::from_bits(index.wrapping_mul(0x9e37_79b9)))
            .map(|value| if value.abs() < 1e4 && value.is_normal() { value } else { 0.25 })
            .collect();
        let counts: Vec<f32> = (0..values.len()).map(|at| (at * 7 % 23) as f32 * 0.3).collect();
        for (bits, group) in [(4, 32), (4, 128), (8, 64), (3, 64), (6, 32), (5, 64)] {
            let format = Affine::new(bits, group).unwrap();
            for params in [FloatType::F32, FloatType::F16, FloatType::BF16] {
                let encode = |counts: Option<&[f32]>, portable: bool| {
                    let mut packed = encode_rows(&vec![0.0; values.len()], format, params).unwrap();
                    let Packed { codes, scales, biases } = &mut packed;
                    let sink =
                        Sink { codes: Some(codes), scales: Some(scales), biases: Some(biases) };
                    let encode = if portable { encode_portable } else { encode_into };
                    encode(&values, counts, format, params, sink).unwrap();
                    packed
                };
                let alike = encode(None, true);
                assert_eq!(alike, encode_rows(&values, format, params).unwrap(), "{format}");
                let counted = encode(Some(&counts), true);
                assert_eq!(counted, encode(Some(&counts), false), "{format}");
                assert_eq!(counted != alike, bits < 8, "{format}");
            }
        }
    }
}
