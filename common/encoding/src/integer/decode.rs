//! From codes, scales and zero points to plain numbers.

use super::format::{Integer, Zero};
use crate::float::FloatType;

/// What whole rows are stored in.
pub(super) struct Stored<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
    /// Element type of the scales.
    pub(super) params: FloatType,
    /// `None` if all are the middle.
    pub(super) zeros: Option<&'a [u8]>,
    /// The group of each column; `None` if neighbours share one.
    pub(super) groups: Option<&'a [u8]>,
}

/// Fills `out` with the weights of whole rows of so many `columns`: `scale · (code - zero)` in f32, the difference exact, and
/// the product, too, for F16 and BF16 scales. Bytes may lie at any address; a column of a group that there is not has the last.
///
/// # Panics
/// If the lengths do not belong together.
pub(super) fn decode_rows(format: Integer, stored: &Stored<'_>, columns: usize, out: &mut [f32]) {
    let Stored { codes, scales, params, zeros, groups } = *stored;
    let bits = format.bits();
    assert_eq!(codes.len() * 8, out.len() * bits, "as many codes as weights");
    if out.is_empty() {
        return;
    }
    let rows = out.len() / columns;
    let count = format.groups(columns as u64).expect("rows are whole words") as usize;
    let mut widened = vec![0.0; rows * count];
    params.widen(scales, &mut widened);
    let groups = groups.map(|groups| group_of_each(groups, count));
    assert!(
        groups.as_ref().is_none_or(|groups| groups.len() == columns),
        "a group for each column"
    );
    let zero_bytes = (count * bits).div_ceil(8);
    let mut pairs = vec![(0.0, 0.0); count]; // Scale and zero of the groups of a row.
    for (row, out) in out.chunks_exact_mut(columns).enumerate() {
        let codes = &codes[row * columns * bits / 8..][..columns * bits / 8];
        let zeros = zeros.map(|zeros| &zeros[row * zero_bytes..][..zero_bytes]);
        for (group, (pair, scale)) in pairs.iter_mut().zip(&widened[row * count..]).enumerate() {
            *pair = (*scale, zero_of(format, zeros, group));
        }
        let weight = |column: usize, (scale, zero): (f32, f32)| {
            scale * (f32::from(code(codes, bits, column)) - zero)
        };
        match &groups {
            None => {
                let size = format.group().unwrap_or(columns);
                for (group, (out, pair)) in out.chunks_mut(size).zip(&pairs).enumerate() {
                    let columns = group * size..;
                    out.iter_mut()
                        .zip(columns)
                        .for_each(|(out, column)| *out = weight(column, *pair));
                }
            }
            Some(groups) => {
                for (column, (out, &group)) in out.iter_mut().zip(groups).enumerate() {
                    *out = weight(column, pairs[group]);
                }
            }
        }
    }
}

/// The code at that place of a row, or the zero.
fn code(codes: &[u8], bits: usize, at: usize) -> u8 {
    match bits {
        8 => codes[at],
        _ => codes[at / 2] >> (at % 2 * 4) & 15,
    }
}

/// What is taken of the codes of a group of a row with these zeros.
pub(super) fn zero_of(format: Integer, zeros: Option<&[u8]>, group: usize) -> f32 {
    let stored = || f32::from(code(zeros.expect("it has zeros"), format.bits(), group));
    match format.zero() {
        Zero::Middle => f32::from(1u8 << (format.bits() - 1)),
        Zero::Stored => stored(),
        Zero::OneMore => stored() + 1.0,
    }
}

/// The group of each column, of which there are `count`.
fn group_of_each(groups: &[u8], count: usize) -> Vec<usize> {
    let last = count.saturating_sub(1);
    let (groups, _) = groups.as_chunks::<4>();
    groups.iter().map(|group| (u32::from_le_bytes(*group) as usize).min(last)).collect()
}
