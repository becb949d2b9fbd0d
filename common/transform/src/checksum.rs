//! Checksums of files (CRC-32 of IEEE 802.3), joined from those of their stretches.

use crc32fast::Hasher;

/// Bytes of a file, and what they make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Summed {
    /// The first of them.
    pub(crate) offset: u64,
    /// How many.
    pub(crate) bytes: u64,
    /// Their checksum.
    pub(crate) crc32: u32,
}

/// The checksum of the first `end` bytes of a file from those of its stretches, which share no byte; between them are zeros.
pub(crate) fn join(mut stretches: Vec<Summed>, end: u64) -> u32 {
    stretches.sort_by_key(|summed| summed.offset);
    let (mut joined, mut at) = (Hasher::new(), 0);
    for Summed { offset, bytes, crc32 } in stretches {
        zeros(&mut joined, offset.saturating_sub(at));
        joined.combine(&Hasher::new_with_initial_len(crc32, bytes));
        at = at.max(offset + bytes);
    }
    zeros(&mut joined, end.saturating_sub(at));
    joined.finalize()
}

fn zeros(joined: &mut Hasher, mut bytes: u64) {
    const ZEROS: [u8; 4096] = [0; 4096];
    while bytes > 0 {
        let some = bytes.min(ZEROS.len() as u64);
        joined.update(&ZEROS[..some as usize]);
        bytes -= some;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_stretches_are_joined_to_that_of_the_file() {
        let mut file = vec![0; 9000];
        let summed = |(offset, bytes): (usize, usize)| {
            let part = &mut file[offset..offset + bytes];
            part.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8 + 1);
            Summed { offset: offset as u64, bytes: bytes as u64, crc32: crc32fast::hash(part) }
        };
        let stretches = [(5000, 3900), (10, 90), (100, 1)].map(summed).to_vec();
        assert_eq!(join(stretches.clone(), 9000), crc32fast::hash(&file));
        // One without bytes changes nothing, wherever it is.
        for offset in [0, 10, 50, 5000, 9000] {
            let empty = Summed { offset, bytes: 0, crc32: 0 };
            let all = [&stretches[..], &[empty]].concat();
            assert_eq!(join(all, 9000), crc32fast::hash(&file), "{offset}");
        }
        assert_eq!(join(Vec::new(), 3), crc32fast::hash(&[0; 3]));
    }
}
