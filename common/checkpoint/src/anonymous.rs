//! Anonymous memory for copies of weights, in huge pages where the system gives them.

use std::io;
use std::ops::Range;

use memmap2::{Mmap, MmapMut};

/// Size and alignment of a huge page on the systems we know (bytes), and the piece that is copied
/// at once: for the time of one piece its bytes are in memory twice.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Copies `source` to the start of a huge page, piece by piece; `copied` is told of each piece of
/// `source` that is no longer needed.
///
/// Returns the memory and where in it the bytes lie. Where the bytes do not fill the last huge page
/// that one is of small pages, so that the copy is resident with its own size.
///
/// # Errors
/// If the system gives no memory.
pub(crate) fn copy(
    source: &[u8],
    copied: &mut dyn FnMut(Range<usize>),
) -> io::Result<(Mmap, Range<usize>)> {
    let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
    let room = source.len().checked_add(HUGE_PAGE_BYTES).ok_or_else(too_long)?;
    let mut map = MmapMut::map_anon(room)?; // What is not written costs no memory.
    let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
    advise(&map, start, source.len());
    let target = &mut map[start..start + source.len()]; // Inside: `room` has a whole page more.
    let pieces = source.chunks(HUGE_PAGE_BYTES).zip(target.chunks_mut(HUGE_PAGE_BYTES));
    for (index, (from, to)) in pieces.enumerate() {
        to.copy_from_slice(from);
        let piece = index * HUGE_PAGE_BYTES;
        copied(piece..piece + from.len());
    }
    Ok((map.make_read_only()?, start..start + source.len()))
}

/// Asks for huge pages where they are filled, and for small ones elsewhere. Hints: a system without
/// huge pages gives small ones.
fn advise(map: &MmapMut, start: usize, length: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole = length - length % HUGE_PAGE_BYTES;
        let _ = map.advise_range(memmap2::Advice::HugePage, start, whole);
        let end = start + whole;
        let _ = map.advise_range(memmap2::Advice::NoHugePage, end, map.len() - end);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (map, start, length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_byte_to_an_aligned_place() {
        let page = HUGE_PAGE_BYTES;
        for length in [0, 1, page - 1, page, page + 1, 3 * page + 4097] {
            let source: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
            let mut pieces = Vec::new();
            let (map, range) = copy(&source, &mut |piece| pieces.push(piece)).expect("memory");
            assert!(map[range.clone()] == source, "{length} bytes");
            assert_eq!((map.as_ptr() as usize + range.start) % page, 0);
            let ends = pieces.iter().scan(0, |end, piece| {
                assert_eq!(std::mem::replace(end, piece.end), piece.start, "no hole");
                Some(*end)
            });
            assert_eq!(ends.last().unwrap_or(0), length);
        }
    }
}
