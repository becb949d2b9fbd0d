//! From codes, scales and biases to plain numbers.

use super::format::Affine;
use crate::float::FloatType;

/// Fills `out` with the weights of whole rows (or whole groups): `scale · code + bias` in f32, the
/// product exact for F16 and BF16 scales. Bytes may lie at any address.
///
/// # Panics
/// If the lengths do not belong together.
pub fn decode_rows(
    codes: &[u8],
    scales: &[u8],
    biases: &[u8],
    format: Affine,
    params: FloatType,
    out: &mut [f32],
) {
    let groups = out.len() / format.group();
    assert!(out.len().is_multiple_of(format.group()), "rows are whole groups");
    assert_eq!(codes.len(), groups * format.group_bytes(), "as many codes as weights");
    let widen = |bytes: &[u8]| {
        let mut numbers = vec![0.0; groups];
        params.widen(bytes, &mut numbers);
        numbers
    };
    let (scales, biases) = (widen(scales), widen(biases));
    let codes = codes.chunks_exact(format.group_bytes());
    for (((out, codes), scale), bias) in
        out.chunks_exact_mut(format.group()).zip(codes).zip(scales).zip(biases)
    {
        let weight = |code: u8| scale * f32::from(code) + bias;
        match format.bits() {
            8 => out.iter_mut().zip(codes).for_each(|(out, &code)| *out = weight(code)),
            4 => {
                let (pairs, _) = out.as_chunks_mut::<2>();
                for (pair, &byte) in pairs.iter_mut().zip(codes) {
                    *pair = [weight(byte & 15), weight(byte >> 4)];
                }
            }
            bits => eights(bits, codes, out.as_chunks_mut().0, |eight, codes| {
                eight.iter_mut().zip(codes).for_each(|(out, code)| *out = weight(code));
            }),
        }
    }
}

/// Fills `out` with the codes of whole groups, each in a byte of its own.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn unpack(codes: &[u8], format: Affine, out: &mut [u8]) {
    assert_eq!(codes.len() * 8, out.len() * format.bits(), "as many codes as weights");
    match format.bits() {
        8 => out.copy_from_slice(codes),
        4 => {
            for (pair, byte) in out.as_chunks_mut().0.iter_mut().zip(codes) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        bits => eights(bits, codes, out.as_chunks_mut().0, |to, codes| *to = codes),
    }
}

/// Gives `take` every eight codes of so many bits with what is to be made of them.
///
/// # Panics
/// If these are not 2, 3, 5 or 6.
#[inline(always)]
fn eights<T>(bits: usize, codes: &[u8], out: &mut [[T; 8]], take: impl Fn(&mut [T; 8], [u8; 8])) {
    match bits {
        2 => each::<2, T>(codes, out, take),
        3 => each::<3, T>(codes, out, take),
        5 => each::<5, T>(codes, out, take),
        6 => each::<6, T>(codes, out, take),
        _ => unreachable!("no affine matrix has codes of {bits} bits"),
    }
}

/// The same, of codes of `BITS`: eight lie in as many bytes.
#[inline(always)]
fn each<const BITS: usize, T>(
    codes: &[u8],
    out: &mut [[T; 8]],
    take: impl Fn(&mut [T; 8], [u8; 8]),
) {
    for (to, bytes) in out.iter_mut().zip(codes.as_chunks::<BITS>().0) {
        let mut stream = [0; 8];
        stream[..BITS].copy_from_slice(bytes);
        let stream = u64::from_le_bytes(stream);
        let mut codes = [0; 8];
        for (at, code) in codes.iter_mut().enumerate() {
            *code = (stream >> (at * BITS)) as u8 & (u8::MAX >> (8 - BITS));
        }
        take(to, codes);
    }
}
