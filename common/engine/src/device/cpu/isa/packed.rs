//! How codes of 4 bits lie in bytes.

/// `N` codes, a byte each. Of 4 bits, 32 lie in 16 bytes: the first half of them in the lower halves.
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
