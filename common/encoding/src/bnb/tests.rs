//! Codes of levels against their definition, and against what bitsandbytes says.

use super::format::{Bnb, Levels};
use crate::codec::RowsAt;
use crate::dtype::Dtype;
use crate::part::Part;
use crate::tag::Encoding;

/// Bytes without meaning.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|index| ((index + seed) * 37 + index / 11 * 101) as u8).collect()
}

fn numbers(count: usize, of: impl Fn(usize) -> f32) -> Vec<u8> {
    (0..count).flat_map(|index| of(index).to_le_bytes()).collect()
}

fn number(bytes: &[u8], index: usize) -> f64 {
    f64::from(f32::from_le_bytes(bytes[4 * index..][..4].try_into().unwrap()))
}

/// A matrix in that format.
struct Made {
    format: Bnb,
    shape: [usize; 2],
    parts: Vec<(Part, Dtype, Vec<u8>)>,
}

impl Made {
    fn new(format: Bnb, shape: [usize; 2]) -> Self {
        let specs = Encoding::Bnb(format).parts(shape.map(|size| size as u64)).unwrap();
        let parts = specs.into_iter().map(|spec| {
            let count = spec.shape.iter().product::<u64>() as usize;
            let dtype = spec.dtype(Dtype::BF16);
            let bytes = match (spec.part, dtype) {
                (_, Dtype::U8) => bytes(count, spec.shape.len()),
                // Sums and products of such numbers are exact.
                (Part::ScaleLevels, _) => numbers(count, |index| index as f32 / 128.0 - 1.0),
                (Part::ScaleOffset, _) => numbers(count, |_| 0.375),
                _ => numbers(count, |index| (index % 13 + 1) as f32 / 16.0),
            };
            (spec.part, dtype, bytes)
        });
        Made { format, shape, parts: parts.collect() }
    }

    fn part(&self, part: Part) -> &[u8] {
        &self.parts.iter().find(|(found, ..)| *found == part).unwrap().2
    }

    /// A weight by the definition, as if the matrix were one row of numbers.
    fn defined(&self, index: usize) -> f32 {
        let code = self.part(Part::Weight)[index / 2] >> (4 * (1 - index % 2)) & 15;
        let block = index / self.format.block();
        let scale = match self.format.is_nested() {
            false => number(self.part(Part::Scales), block),
            true => {
                let byte = usize::from(self.part(Part::Scales)[block]);
                let level = number(self.part(Part::ScaleLevels), byte);
                level * number(self.part(Part::ScaleScales), block / 256)
                    + number(self.part(Part::ScaleOffset), 0)
            }
        };
        (f64::from(self.format.levels().table()[usize::from(code)]) * scale) as f32
    }

    /// Some rows, as kernels ask for them.
    fn decode(&self, first: usize, rows: usize) -> Vec<f32> {
        let [all, columns] = self.shape;
        let parts: Vec<(Dtype, Vec<u8>)> = self
            .parts
            .iter()
            .map(|(part, dtype, bytes)| {
                let row = bytes.len() / all;
                let bytes = match part {
                    Part::Weight | Part::Scales => &bytes[first * row..(first + rows) * row],
                    _ => bytes,
                };
                (*dtype, [&[0xff], bytes].concat()) // At an odd address.
            })
            .collect();
        let parts: Vec<_> = parts.iter().map(|(dtype, bytes)| (*dtype, &bytes[1..])).collect();
        let mut out = vec![f32::NAN; rows * columns];
        Encoding::Bnb(self.format).decode_rows(RowsAt { first, columns }, &parts, &mut out);
        out
    }
}

#[test]
fn any_rows_of_a_matrix_are_what_is_defined() {
    for format in Bnb::all() {
        // Rows of five blocks: those that share a scale of scales end inside of a row.
        let shape = [120, 5 * format.block()];
        let made = Made::new(format, shape);
        for (first, rows) in [(0, 120), (0, 1), (50, 3), (51, 1), (102, 18), (119, 1), (7, 0)] {
            let found = made.decode(first, rows);
            for (index, found) in found.iter().enumerate() {
                let expected = made.defined(first * shape[1] + index);
                assert_eq!(found.to_bits(), expected.to_bits(), "{format} {first} {index}");
            }
        }
    }
}

#[test]
fn levels_are_those_of_bitsandbytes_to_the_bit() {
    // `get_4bit_type(name).view(torch.int32)`.
    let nf4 = [
        0xbf80_0000_u32,
        0xbf32_39b1,
        0xbf06_6b30,
        0xbeca_32a0,
        0xbe91_a24d,
        0xbe3d_353f,
        0xbdba_7871,
        0,
        0x3da2_faff,
        0x3e24_cae3,
        0x3e7c_04dd,
        0x3ead_033a,
        0x3ee1_a4b8,
        0x3f10_07ab,
        0x3f39_13b3,
        0x3f80_0000,
    ];
    let fp4 = [
        0,
        0x3baa_aaab_u32,
        0x3f2a_aaab,
        0x3f80_0000,
        0x3eaa_aaab,
        0x3f00_0000,
        0x3e2a_aaab,
        0x3e80_0000,
        0,
        0xbbaa_aaab,
        0xbf2a_aaab,
        0xbf80_0000,
        0xbeaa_aaab,
        0xbf00_0000,
        0xbe2a_aaab,
        0xbe80_0000,
    ];
    assert_eq!(Levels::Nf4.table().map(f32::to_bits), nf4);
    assert_eq!(Levels::Fp4.table().map(f32::to_bits), fp4);
}

#[test]
fn scales_at_the_ends_of_their_range_survive() {
    let format = Bnb::new(Levels::Nf4, 64, false).unwrap();
    let decode = |scale: f32| {
        let codes = [0x0fu8; 32]; // -1, then 1.
        let scale = scale.to_le_bytes();
        let parts = [(Dtype::U8, &codes[..]), (Dtype::F32, &scale[..])];
        let mut out = vec![0.0; 64];
        Encoding::Bnb(format).decode_rows(RowsAt::start(64), &parts, &mut out);
        [out[0], out[1]]
    };
    for scale in [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 0.0] {
        assert_eq!(decode(scale), [-scale, scale]);
    }
    assert_eq!(decode(f32::INFINITY), [f32::NEG_INFINITY, f32::INFINITY]);
    assert!(decode(f32::NAN)[0].is_nan());
}

#[test]
fn what_nobody_has_is_no_such_matrix() {
    for block in [0, 1, 32, 63, 256, u64::MAX] {
        assert_eq!(Bnb::new(Levels::Nf4, block, true), None, "{block}");
    }
    let nested = Encoding::Bnb(Bnb::new(Levels::Nf4, 64, true).unwrap());
    assert_eq!(nested.to_string(), "bnb-nf4-64-nested");
    assert!(nested.parts([3, 96]).is_none());
    assert!(nested.parts([u64::MAX, 128]).is_none());
    let parts = nested.parts([120, 320]).unwrap();
    let shapes: Vec<&[u64]> = parts.iter().map(|part| &part.shape[..]).collect();
    assert_eq!(shapes, [&[120, 160][..], &[120, 5], &[3], &[256], &[1]]);
    for text in ["bnb-nf4-32", "bnb-nf4", "bnb-", "bnb-nf4-64-", "bnb-af4-64", "bnb-nf4-64-nested-"]
    {
        assert!(text.parse::<Encoding>().is_err(), "{text}");
    }
}
