//! What most kinds of blocks have.

use crate::float::element::f16;

/// The f16 at the byte `at` of a block.
#[inline(always)]
pub(super) fn scale(block: &[u8], at: usize) -> f32 {
    f16(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Calls `weight` with the place and the 4 bits of each code of 16 bytes: their low halves are the first 16 codes, their high
/// halves the others. No place is computed, so that no check for overflow keeps a compiler from making vectors of the loops.
///
/// # Panics
/// If there are not 16 bytes and 32 weights.
#[allow(clippy::needless_range_loop, reason = "iterators that count check for overflow")]
#[inline(always)]
pub(super) fn halves(bytes: &[u8], out: &mut [f32], weight: impl Fn(usize, u8) -> f32) {
    let (Ok(bytes), Ok(out)) = (<&[u8; 16]>::try_from(bytes), <&mut [f32; 32]>::try_from(out))
    else {
        panic!("16 bytes of 32 codes");
    };
    for place in 0..16 {
        out[place] = weight(place, bytes[place] & 15);
    }
    for place in 16..32 {
        out[place] = weight(place, bytes[place & 15] >> 4);
    }
}

/// The scale of a group of Q3_K, from -32 to 31: four bits of the first 8 bytes, the lower halves first, and above them two of the
/// last 4.
pub(super) fn scale_of_6_bits(params: &[u8], group: usize) -> i8 {
    let low = params[group % 8] >> (group / 8 * 4) & 15;
    let high = params[8 + group % 4] >> (group / 4 * 2) & 3;
    (low | high << 4).cast_signed() - 32
}

/// The 6 bits of scale of the eight groups of Q4_K, then those of minimum: the first four groups have theirs in the low
/// bits of bytes 0 to 7, the others the halves of bytes 8 to 11, and above them the top bits of bytes 0 to 7. Four at a
/// time, in words.
#[inline(always)]
pub(super) fn scales_and_mins(params: &[u8; 12]) -> [[u8; 8]; 2] {
    let word = |at: usize| {
        u32::from_le_bytes([params[at], params[at + 1], params[at + 2], params[at + 3]])
    };
    let (scales, mins, halves) = (word(0), word(4), word(8));
    let all = |first: u32, halves: u32| {
        let others = halves & 0x0f0f_0f0f | first >> 2 & 0x3030_3030;
        (u64::from(first & 0x3f3f_3f3f) | u64::from(others) << 32).to_le_bytes()
    };
    [all(scales, halves), all(mins, halves >> 4)]
}

/// The scale of a group of IQ4_XS, from -32 to 31: four bits of bytes 4 to 7, and above them two of bytes 2 and 3.
pub(super) fn scale_of_xs(block: &[u8; 136], group: usize) -> i8 {
    let uppers = u16::from_le_bytes([block[2], block[3]]);
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    let high = (uppers >> (2 * group) & 3) as u8;
    (low | high << 4).cast_signed() - 32
}

/// Half of `2^(e - 127)`.
pub(super) fn half_power(e: u8) -> f32 {
    match e {
        tiny @ (0 | 1) => f32::from_bits(0x0020_0000 << tiny), // Subnormal: 2^-128 and 2^-127.
        e => f32::from_bits(u32::from(e - 1) << 23),
    }
}

/// The numbers of IQ4_NL and IQ4_XS: closer to each other around zero, where most weights are.
pub(super) const UNEVEN: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bits_of_all_groups_are_those_of_each() {
        for seed in 0..=255u8 {
            let params: [u8; 12] = std::array::from_fn(|at| {
                seed.wrapping_mul(37).wrapping_add((at as u8).wrapping_mul(101))
            });
            let [scales, mins] = scales_and_mins(&params);
            for group in 0..4 {
                assert_eq!(scales[group], params[group] % 64);
                assert_eq!(mins[group], params[4 + group] % 64);
                let halves = params[8 + group];
                assert_eq!(scales[4 + group], halves % 16 + params[group] / 64 * 16);
                assert_eq!(mins[4 + group], halves / 16 + params[4 + group] / 64 * 16);
            }
        }
    }
}
