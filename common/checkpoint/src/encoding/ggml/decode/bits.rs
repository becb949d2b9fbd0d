//! What most kinds of blocks have.

use crate::encoding::float::element::f16;

/// The f16 at the byte `at` of a block.
pub(super) fn scale(block: &[u8], at: usize) -> f32 {
    f16(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Calls `weight` with the place and the 4 bits of each code of 16 bytes: their low halves are the first 16 codes, their high
/// halves the others.
pub(super) fn halves(bytes: &[u8], out: &mut [f32], weight: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (place, ((low, high), byte)) in low.iter_mut().zip(high).zip(bytes).enumerate() {
        *low = weight(place, byte & 15);
        *high = weight(place + 16, byte >> 4);
    }
}
