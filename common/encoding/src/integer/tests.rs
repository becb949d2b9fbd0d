//! Whole numbers against their definition.

use super::{Integer, Order, Zero};
use crate::dtype::Dtype;
use crate::float::FloatType;
use crate::{Encoding, Part, RowsAt};

/// Bytes of no meaning: xorshift64.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// The parts of a matrix of that shape, with scales of about 1 and groups that there are.
fn made(
    format: Integer,
    [rows, columns]: [usize; 2],
    scales: FloatType,
) -> Vec<(Part, Dtype, Vec<u8>)> {
    let specs = Encoding::Integer(format).parts([rows as u64, columns as u64]).unwrap();
    let groups = format.groups(columns as u64).unwrap() as u32;
    let part = |spec: crate::PartSpec| {
        let dtype = spec.dtype(scales.dtype());
        let count = dtype.tensor_bytes(&spec.shape).unwrap() as usize;
        let random = bytes(count, spec.part.ending().len() as u64 + columns as u64);
        let bytes = match spec.part {
            Part::Scales => {
                let scale = |byte: &u8| f32::from(*byte) / 128.0 - 0.75;
                let numbers: Vec<f32> =
                    random[..count / scales.bytes()].iter().map(scale).collect();
                let mut bytes = vec![0; count];
                scales.narrow(&numbers, &mut bytes).unwrap();
                bytes
            }
            Part::Groups => {
                let groups = random.chunks(4).map(|it| u32::from(it[0]) % groups);
                groups.flat_map(u32::to_le_bytes).collect()
            }
            _ => random,
        };
        (spec.part, dtype, bytes)
    };
    specs.into_iter().map(part).collect()
}

/// One weight by the definition: bit streams, f64.
fn by_definition(
    format: Integer,
    parts: &[(Part, Dtype, Vec<u8>)],
    columns: usize,
    [row, column]: [usize; 2],
) -> f64 {
    let part = |part: Part| parts.iter().find(|it| it.0 == part).map(|it| &it.2[..]);
    let (bits, count) = (format.bits(), format.groups(columns as u64).unwrap() as usize);
    let code = |bytes: &[u8], first: usize| -> u32 {
        let bit = |at: usize| u32::from(bytes[(first + at) / 8] >> ((first + at) % 8) & 1) << at;
        (0..bits).map(bit).sum()
    };
    let group = match part(Part::Groups) {
        Some(groups) => u32::from_le_bytes(*groups[column * 4..].first_chunk().unwrap()) as usize,
        None => column / format.group().unwrap_or(columns),
    };
    let scales = FloatType::of(parts[1].1).unwrap();
    let mut scale = [0.0];
    let at = (row * count + group) * scales.bytes();
    scales.widen(&parts[1].2[at..at + scales.bytes()], &mut scale);
    let zero_row = row * (count * bits).div_ceil(8) * 8;
    let stored = || code(part(Part::Zeros).unwrap(), zero_row + group * bits);
    let zero = match format.zero() {
        Zero::Middle => 1 << (bits - 1),
        Zero::Stored => stored(),
        Zero::OneMore => stored() + 1,
    };
    let code = code(part(Part::Weight).unwrap(), (row * columns + column) * bits);
    f64::from(scale[0]) * (f64::from(code) - f64::from(zero))
}

#[test]
fn every_format_decodes_by_the_definition_at_any_address_and_from_any_row() {
    for format in Integer::all() {
        for (shape, scales) in [
            ([3, 128], FloatType::F16),
            ([2, 384], FloatType::BF16),
            ([5, 160], FloatType::F32), // The last group may be shorter.
            ([1, 8], FloatType::F16),
            ([0, 64], FloatType::F16),
        ] {
            let [rows, columns] = shape;
            let parts = made(format, shape, scales);
            let first = rows / 2;
            let moved: Vec<_> = parts
                .iter()
                .map(|(part, dtype, bytes)| {
                    let of_rows = if *part == Part::Groups { 0 } else { bytes.len() / rows.max(1) };
                    (*dtype, [&[0xff], &bytes[first * of_rows..]].concat())
                })
                .collect();
            let moved: Vec<_> = moved.iter().map(|(dtype, bytes)| (*dtype, &bytes[1..])).collect();
            let mut found = vec![f32::NAN; (rows - first) * columns];
            Encoding::Integer(format).decode_rows(RowsAt { first, columns }, &moved, &mut found);
            for (index, found) in found.iter().enumerate() {
                let place = [first + index / columns, index % columns];
                // The exact product, rounded once.
                let expected = by_definition(format, &parts, columns, place) as f32;
                assert_eq!(*found, expected, "{format} {shape:?} {place:?}");
            }
        }
    }
}

#[test]
fn the_documented_example_of_gptq_decodes() {
    let format = Integer::new(4, None, Zero::OneMore, Order::Neighbours).unwrap();
    let (codes, scale, zero) = (0x888f_0798_u32.to_le_bytes(), 0.5f32.to_le_bytes(), [7]);
    let parts = [(Dtype::U32, &codes[..]), (Dtype::F32, &scale[..]), (Dtype::U8, &zero[..])];
    let mut out = [0.0; 8];
    Encoding::Integer(format).decode_rows(RowsAt::start(8), &parts, &mut out);
    assert_eq!(out, [0.0, 0.5, -0.5, -4.0, 3.5, 0.0, 0.0, 0.0]);
    // A stored 15 means 16.
    let parts = [parts[0], parts[1], (Dtype::U8, &[15][..])];
    Encoding::Integer(format).decode_rows(RowsAt::start(8), &parts, &mut out);
    assert_eq!(out[..2], [-4.0, -3.5]);
}

#[test]
fn the_widest_numbers_are_exact() {
    let format = Integer::new(8, None, Zero::OneMore, Order::Neighbours).unwrap();
    let (codes, scale) = ([0, 255, 1, 128], 65504.0f32.to_le_bytes());
    let parts = [(Dtype::U32, &codes[..]), (Dtype::F32, &scale[..]), (Dtype::U8, &[255][..])];
    let mut out = [0.0; 4];
    Encoding::Integer(format).decode_rows(RowsAt::start(4), &parts, &mut out);
    assert_eq!(out, [-256.0 * 65504.0, -65504.0, -255.0 * 65504.0, -128.0 * 65504.0]);
}

#[test]
fn a_column_of_no_group_has_the_last_and_nothing_panics() {
    let format = Integer::new(4, Some(32), Zero::Middle, Order::Chosen).unwrap();
    let groups = [[0xff; 128], [0; 128]].concat(); // The last, then the first.
    let scales = [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()].concat();
    let codes = [0x99; 32];
    let parts = [(Dtype::U32, &codes[..]), (Dtype::F32, &scales[..]), (Dtype::U32, &groups[..])];
    let mut out = [0.0; 64];
    Encoding::Integer(format).decode_rows(RowsAt::start(64), &parts, &mut out);
    assert_eq!(out, [[2.0; 32], [1.0; 32]].concat()[..]);
}

#[test]
fn rows_have_whole_words_and_parts_their_shapes() {
    let format = |bits, group, zero, order| Integer::new(bits, group, zero, order);
    let four = format(4, Some(32), Zero::OneMore, Order::Chosen).unwrap();
    let shapes = |format, shape| -> Vec<Vec<u64>> {
        let parts = Encoding::Integer(format).parts(shape).unwrap_or_default();
        parts.into_iter().map(|part| part.shape).collect()
    };
    // Three groups have two bytes of zeros.
    assert_eq!(shapes(four, [7, 96]), [vec![7, 12], vec![7, 3], vec![7, 2], vec![96]]);
    assert_eq!(shapes(four, [7, 104])[1], [7, 4]);
    assert!(shapes(four, [7, 100]).is_empty());
    let eight = format(8, None, Zero::Stored, Order::Neighbours).unwrap();
    assert_eq!(shapes(eight, [7, 100]), [vec![7, 25], vec![7, 1], vec![7, 1]]);
    for (bits, group, order) in [
        (3, Some(64), Order::Neighbours),
        (260, Some(64), Order::Neighbours),
        (4, Some(0), Order::Neighbours),
        (4, Some(16), Order::Neighbours),
        (4, Some(288), Order::Neighbours),
        (4, None, Order::Chosen),
    ] {
        assert_eq!(format(bits, group, Zero::Middle, order), None, "{bits} {group:?}");
    }
    assert_eq!(Integer::all().count(), 42);
}
