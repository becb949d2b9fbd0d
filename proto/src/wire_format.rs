//! How hidden states become bytes and back: whole, as bf16, or as 8-bit codes with scales.
//!
//! Every row is encoded by itself, so what arrives does not depend on the rows that travel with it.
//! Encoding again what was decoded gives the same bytes: a hop that the master relays changes nothing.
use std::fmt;
use std::str::FromStr;

use crate::wire;

/// Values that share a scale.
const GROUP: usize = 64;
/// Bytes of a scale.
const SCALE_BYTES: usize = 4;
/// Largest magnitude of a code.
const MAX_CODE: f32 = 127.0;
/// Low bits of a scale that are zero, so that a scale times a code is exact in f32.
const SCALE_ZERO_BITS: u32 = 0x7f;
/// Adding it moves the whole number nearest to a small f32, ties to even, into the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// How hidden states travel between stages, and to and from the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireFormat {
    /// Little-endian f32: nothing is lost.
    #[default]
    F32,
    /// The upper half of the f32, rounded to the nearest, ties to even.
    Bf16,
    /// For each group of 64 values of a row, `scale = max |x| / 127` (its last 7 bits cut off) as f32,
    /// then `x / scale` of each as a signed byte, rounded to the nearest, ties to even. A group of
    /// magnitudes below what f32 has full precision for is sent as zeros; one with a value that is
    /// not finite arrives as NaN.
    Q8,
}

/// A number of a format that this build does not know.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("wire format {found} is not known")]
pub struct UnknownNumber {
    /// The number.
    pub found: i32,
}

/// A name that is none of the formats'.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected f32, bf16 or q8, found {found:?}")]
pub struct UnknownName {
    /// The name.
    pub found: String,
}

impl WireFormat {
    /// Bytes of a row of `width` values.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width * 4,
            Self::Bf16 => width * 2,
            Self::Q8 => width + width.div_ceil(GROUP) * SCALE_BYTES,
        }
    }

    /// Bytes of `values`: whole rows of `width`.
    pub(crate) fn encode(self, values: &[f32], width: usize) -> Vec<u8> {
        match self {
            Self::F32 => each(values, f32::to_le_bytes),
            Self::Bf16 => each(values, |value| to_bf16(value).to_le_bytes()),
            Self::Q8 => {
                let rows = values.chunks_exact(width.max(1));
                let mut bytes = Vec::with_capacity(rows.len() * self.row_bytes(width));
                for group in rows.flat_map(|row| row.chunks(GROUP)) {
                    encode_group(group, &mut bytes);
                }
                bytes
            }
        }
    }

    /// Adds the values of one encoded row.
    fn decode_row(self, row: &[u8], values: &mut Vec<f32>) {
        match self {
            Self::F32 => {
                values.extend(row.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)));
            }
            Self::Bf16 => {
                let widened = |&value| f32::from_bits(u32::from(u16::from_le_bytes(value)) << 16);
                values.extend(row.as_chunks().0.iter().map(widened));
            }
            Self::Q8 => {
                for group in row.chunks(SCALE_BYTES + GROUP) {
                    if let Some((&scale, codes)) = group.split_first_chunk() {
                        let scale = f32::from_le_bytes(scale);
                        values.extend(codes.iter().map(|&code| scale * f32::from(code as i8)));
                    }
                }
            }
        }
    }
}

impl fmt::Display for WireFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
        })
    }
}

impl FromStr for WireFormat {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "q8" => Ok(Self::Q8),
            _ => Err(UnknownName { found: text.to_owned() }),
        }
    }
}

impl From<WireFormat> for wire::WireFormat {
    fn from(format: WireFormat) -> Self {
        match format {
            WireFormat::F32 => Self::F32,
            WireFormat::Bf16 => Self::Bf16,
            WireFormat::Q8 => Self::Q8,
        }
    }
}

impl TryFrom<i32> for WireFormat {
    type Error = UnknownNumber;

    /// The format of a number on the wire.
    fn try_from(found: i32) -> Result<Self, UnknownNumber> {
        match wire::WireFormat::try_from(found) {
            Ok(wire::WireFormat::F32) => Ok(Self::F32),
            Ok(wire::WireFormat::Bf16) => Ok(Self::Bf16),
            Ok(wire::WireFormat::Q8) => Ok(Self::Q8),
            Err(_) => Err(UnknownNumber { found }),
        }
    }
}

/// Decodes rows that arrive in pieces cut anywhere.
#[derive(Debug)]
pub(crate) struct Decoder {
    format: WireFormat,
    row_bytes: usize,
    tail: Vec<u8>, // The beginning of a row cut by a piece's edge: always less than a row.
}

impl Decoder {
    /// For rows of `width` values.
    pub(crate) fn new(format: WireFormat, width: usize) -> Self {
        // A row of no values has no bytes; pieces of one byte then decode to nothing.
        Self { format, row_bytes: format.row_bytes(width).max(1), tail: Vec::new() }
    }

    /// Adds the values of every row that `bytes` completes.
    pub(crate) fn push(&mut self, mut bytes: &[u8], values: &mut Vec<f32>) {
        if !self.tail.is_empty() {
            let missing = self.row_bytes - self.tail.len();
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.tail.extend_from_slice(now);
            bytes = later;
            if self.tail.len() < self.row_bytes {
                return;
            }
            self.format.decode_row(&self.tail, values);
            self.tail.clear();
        }
        let rows = bytes.chunks_exact(self.row_bytes);
        self.tail.extend_from_slice(rows.remainder());
        rows.for_each(|row| self.format.decode_row(row, values));
    }
}

/// The bytes that `encode` makes of each value, in order.
fn each<const N: usize>(values: &[f32], encode: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    for (out, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *out = encode(value);
    }
    bytes
}

/// The nearest bf16, ties to even.
fn to_bf16(value: f32) -> u16 {
    const QUIET: u32 = 0x40_0000; // Rounding must not make an infinity of a NaN.
    let bits = value.to_bits();
    let half = 0x7fff + (bits >> 16 & 1); // Reaches the next bf16 from above the middle, or from it if this one is odd.
    let rounded = if value.is_nan() { bits | QUIET } else { bits + half };
    (rounded >> 16) as u16
}

/// Adds the scale and the codes of one group.
fn encode_group(group: &[f32], bytes: &mut Vec<u8>) {
    let (scale, divisor) = scale(largest(group));
    bytes.extend_from_slice(&scale.to_le_bytes());
    // Within ±127 for finite values: x / scale is at most 127.002. The low byte of `ROUND` is zero.
    bytes.extend(group.iter().map(|x| (x / divisor + ROUND).to_bits() as u8));
}

/// The largest magnitude; infinity and NaN count as larger than any other.
fn largest(group: &[f32]) -> f32 {
    // Magnitudes order as their bits do.
    let magnitude = |x: &f32| x.to_bits() & (u32::MAX >> 1);
    f32::from_bits(group.iter().map(magnitude).max().unwrap_or(0))
}

/// The scale of a group as it is sent, and what its values are divided by to make codes.
fn scale(largest: f32) -> (f32, f32) {
    if !largest.is_finite() {
        return (f32::NAN, f32::INFINITY);
    }
    // Cut off, not rounded: 127 · scale then is no larger than the largest, so that it is finite.
    let scale = f32::from_bits((largest / MAX_CODE).to_bits() & !SCALE_ZERO_BITS);
    if scale < f32::MIN_POSITIVE { (0.0, f32::INFINITY) } else { (scale, scale) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [WireFormat; 3] = [WireFormat::F32, WireFormat::Bf16, WireFormat::Q8];
    const WIDTHS: [usize; 8] = [1, 3, 63, 64, 65, 127, 128, 700];

    fn decode(format: WireFormat, bytes: &[u8], width: usize) -> Vec<f32> {
        let mut values = Vec::new();
        let mut decoder = Decoder::new(format, width);
        decoder.push(bytes, &mut values);
        assert!(decoder.tail.is_empty(), "{format}: not whole rows");
        values
    }

    fn there_and_back(format: WireFormat, values: &[f32], width: usize) -> Vec<f32> {
        let bytes = format.encode(values, width);
        assert_eq!(bytes.len(), values.len() / width * format.row_bytes(width), "{format} {width}");
        decode(format, &bytes, width)
    }

    /// Values of many magnitudes and both signs, the same for the same seed.
    fn values(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            unit * 2f32.powi((state % 24) as i32 - 12)
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn f32_comes_back_bit_for_bit() {
        let mut sent = values(3 * 65, 1);
        sent[7] = -0.0;
        sent[9] = f32::from_bits(0xffc0_1234);
        let found = there_and_back(WireFormat::F32, &sent, 65);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&sent));
    }

    #[test]
    fn bf16_is_the_nearest_of_its_numbers() {
        // The two bf16 around a value are those of its upper half and of the next one.
        for value in values(4000, 2) {
            let low = f32::from_bits(value.to_bits() & 0xffff_0000);
            let high = f32::from_bits((value.to_bits() & 0xffff_0000) + 0x1_0000);
            let found = there_and_back(WireFormat::Bf16, &[value], 1)[0];
            let distance = |to: f32| (f64::from(to) - f64::from(value)).abs();
            let nearest = distance(low).min(distance(high));
            assert!(found == low || found == high, "{value:e}: {found:e}");
            assert_eq!(distance(found), nearest, "{value:e}: {found:e}");
        }
        let ties =
            [(0x3f80_8000, 0x3f80_0000), (0x3f81_8000, 0x3f82_0000), (0xbf81_8000, 0xbf82_0000)];
        for (sent, expected) in ties {
            let found = there_and_back(WireFormat::Bf16, &[f32::from_bits(sent)], 1)[0];
            assert_eq!(found.to_bits(), expected, "{sent:#x}");
        }
    }

    #[test]
    fn q8_is_within_half_a_step_of_each_group() {
        for width in WIDTHS {
            let sent = values(3 * width, width as u64);
            let found = there_and_back(WireFormat::Q8, &sent, width);
            assert_eq!(found.len(), sent.len());
            let rows = sent.chunks(width).zip(found.chunks(width));
            for (sent, found) in rows.flat_map(|(a, b)| a.chunks(64).zip(b.chunks(64))) {
                let largest = sent.iter().map(|&x| f64::from(x).abs()).fold(0.0, f64::max);
                let step = largest / 127.0;
                for (&a, &b) in sent.iter().zip(found) {
                    let distance = (f64::from(a) - f64::from(b)).abs();
                    assert!(
                        distance <= step * 0.5001,
                        "width {width}: {a:e} came as {b:e}, step {step:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn codes_are_rounded_to_the_nearest_ties_to_even() {
        let bytes = WireFormat::Q8.encode(&[-254.0, 1.0, 3.0, 5.0, -3.0, 2.4, 253.9], 7);
        assert_eq!(bytes[..4], 2f32.to_le_bytes());
        let codes: Vec<i8> = bytes[4..].iter().map(|&code| code as i8).collect();
        assert_eq!(codes, [-127, 0, 2, 2, -2, 1, 127]);
    }

    #[test]
    fn q8_takes_every_magnitude() {
        for exponent in -149..=127 {
            for mantissa in [1.0, 1.3, 1.7, 1.999_999_9] {
                let largest = (mantissa * 2f64.powi(exponent)) as f32;
                let found = there_and_back(WireFormat::Q8, &[largest, -largest], 2);
                if largest < 128.0 * f32::MIN_POSITIVE && found[0] == 0.0 {
                    assert_eq!(found, [0.0, 0.0]);
                } else {
                    let ratio = f64::from(found[0]) / f64::from(largest);
                    assert!((1.0 - 2f64.powi(-16)..=1.0).contains(&ratio), "{largest:e}: {ratio}");
                    assert_eq!(found[1], -found[0]);
                }
            }
        }
    }

    #[test]
    fn what_was_decoded_encodes_to_the_same_bytes() {
        for format in ALL {
            for (width, seed) in WIDTHS.into_iter().zip(100..) {
                let bytes = format.encode(&values(40 * width, seed), width);
                let again = format.encode(&decode(format, &bytes, width), width);
                assert_eq!(again, bytes, "{format}, width {width}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_arrives_as_not_finite() {
        for format in ALL {
            for bad in
                [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::NEG_INFINITY]
            {
                let mut sent = values(2 * 130, 3);
                sent[130 + 70] = bad;
                let found = there_and_back(format, &sent, 130);
                assert!(!found[130 + 70].is_finite(), "{format}: {bad} came as {}", found[200]);
                let clean = there_and_back(format, &sent[..130], 130);
                assert_eq!(found[..130], clean, "{format}: the row before");
            }
        }
    }

    #[test]
    fn bytes_that_nobody_encodes_decode_to_something() {
        for format in ALL {
            for byte in [0x7f, 0x80, 0xff] {
                let bytes = vec![byte; 2 * format.row_bytes(70)];
                assert_eq!(decode(format, &bytes, 70).len(), 140, "{format}: {byte:#x}");
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it() {
        let sent = values(5 * 100, 4);
        for format in ALL {
            let together = format.encode(&sent, 100);
            let apart: Vec<u8> = sent.chunks(100).flat_map(|row| format.encode(row, 100)).collect();
            assert_eq!(together, apart, "{format}");
        }
    }

    #[test]
    fn pieces_may_be_cut_anywhere() {
        let sent = values(4 * 67, 5);
        for format in ALL {
            let bytes = format.encode(&sent, 67);
            let whole = decode(format, &bytes, 67);
            for size in [1, 2, 3, 5, 71, 75, 135, 270] {
                let (mut decoder, mut found) = (Decoder::new(format, 67), Vec::new());
                bytes.chunks(size).for_each(|piece| decoder.push(piece, &mut found));
                assert_eq!(found, whole, "{format}, pieces of {size}");
            }
        }
    }

    #[test]
    fn names_and_numbers_come_back() {
        for format in ALL {
            assert_eq!(format.to_string().parse(), Ok(format));
            assert_eq!(WireFormat::try_from(i32::from(wire::WireFormat::from(format))), Ok(format));
        }
        let error = "f16".parse::<WireFormat>().expect_err("refused").to_string();
        assert_eq!(error, "expected f32, bf16 or q8, found \"f16\"");
        assert_eq!(WireFormat::try_from(3), Err(UnknownNumber { found: 3 }));
    }
}
