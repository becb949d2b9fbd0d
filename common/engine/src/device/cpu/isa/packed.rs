//! Codes of 4 bits as bytes, in the order in which activations are multiplied with them.

/// `N` codes, a byte each: of 4 bits those in the lower halves of 16 bytes, then those in the upper ones. That is the order of
/// the activations' words: of 32 inputs the even ones, then the odd ones.
#[inline(always)]
pub(crate) fn unpacked<const N: usize, const BITS: usize>(codes: &[u8]) -> [u8; N] {
    let mut bytes = [0u8; N];
    if BITS == 4 {
        let to = bytes.as_chunks_mut::<32>().0;
        for (codes, to) in codes.as_chunks::<16>().0.iter().zip(to) {
            for i in 0..16 {
                to[i] = codes[i] & 0xf;
                to[16 + i] = codes[i] >> 4;
            }
        }
    } else {
        bytes.copy_from_slice(codes);
    }
    bytes
}
