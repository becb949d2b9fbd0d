//! Anonymous memory for weights, in huge pages where the system gives them.

use std::io;
use std::ops::{Deref, DerefMut, Range};

use memmap2::{Mmap, MmapMut};

/// Size and alignment of a huge page on the systems we know (bytes), and the piece that is copied
/// at once: for the time of one piece its bytes are in memory twice.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of this process to be filled once and then read as a tensor
/// ([`MappedTensor::from_memory`](crate::MappedTensor::from_memory)). A huge page or more of it
/// starts at the start of one.
///
/// Where the bytes do not fill the last huge page that one is of small pages, so that the memory is
/// resident with its own size.
#[derive(Debug)]
pub struct Memory(Kind);

#[derive(Debug)]
enum Kind {
    /// Less than a huge page: nothing to gain.
    Small(Vec<u8>),
    Huge(MmapMut, Range<usize>),
}

/// Memory that nobody changes any more.
pub(crate) enum Filled {
    Small(Vec<u8>),
    Huge(Mmap, Range<usize>),
}

impl Memory {
    /// So many bytes, all zero.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn zeroed(bytes: usize) -> io::Result<Memory> {
        if bytes < HUGE_PAGE_BYTES {
            return Ok(Memory(Kind::Small(vec![0; bytes])));
        }
        let too_long = || io::Error::from(io::ErrorKind::OutOfMemory);
        let room = bytes.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_long)?;
        let map = MmapMut::map_anon(room)?; // What is not written costs no memory.
        let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
        advise(&map, start, bytes);
        Ok(Memory(Kind::Huge(map, start..start + bytes))) // Inside: `room` has a whole page more.
    }

    /// The same bytes, which the system no longer lets this process change.
    pub(crate) fn fill_ends(self) -> io::Result<Filled> {
        Ok(match self.0 {
            Kind::Small(bytes) => Filled::Small(bytes),
            Kind::Huge(map, range) => Filled::Huge(map.make_read_only()?, range),
        })
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Small(bytes) => bytes,
            Kind::Huge(map, range) => &map[range.clone()],
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Small(bytes) => bytes,
            Kind::Huge(map, range) => &mut map[range.clone()],
        }
    }
}

/// Copies `source` piece by piece; `copied` is told of each piece of `source` that is no longer
/// needed.
///
/// # Errors
/// If the system gives no memory.
pub(crate) fn copy(source: &[u8], copied: &mut dyn FnMut(Range<usize>)) -> io::Result<Filled> {
    let mut target = Memory::zeroed(source.len())?;
    copy_into(source, &mut target, copied);
    target.fill_ends()
}

/// Copies `source` into as many bytes, as [`copy`] does.
pub(crate) fn copy_into(source: &[u8], target: &mut [u8], copied: &mut dyn FnMut(Range<usize>)) {
    let pieces = source.chunks(HUGE_PAGE_BYTES).zip(target.chunks_mut(HUGE_PAGE_BYTES));
    for (index, (from, to)) in pieces.enumerate() {
        to.copy_from_slice(from);
        let piece = index * HUGE_PAGE_BYTES;
        copied(piece..piece + from.len());
    }
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

    fn bytes(filled: &Filled) -> &[u8] {
        match filled {
            Filled::Small(bytes) => bytes,
            Filled::Huge(map, range) => &map[range.clone()],
        }
    }

    #[test]
    fn copies_every_byte_to_an_aligned_place() {
        let page = HUGE_PAGE_BYTES;
        for length in [0, 1, page - 1, page, page + 1, 3 * page + 4097] {
            let source: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
            let mut pieces = Vec::new();
            let copy = copy(&source, &mut |piece| pieces.push(piece)).expect("memory");
            assert!(bytes(&copy) == source, "{length} bytes");
            assert!(length < page || (bytes(&copy).as_ptr() as usize).is_multiple_of(page));
            let ends = pieces.iter().scan(0, |end, piece| {
                assert_eq!(std::mem::replace(end, piece.end), piece.start, "no hole");
                Some(*end)
            });
            assert_eq!(ends.last().unwrap_or(0), length);
        }
    }

    #[test]
    fn memory_is_zero_then_what_was_written() {
        for length in [10, 2 * HUGE_PAGE_BYTES + 10] {
            let mut memory = Memory::zeroed(length).expect("memory");
            assert!(memory.len() == length && memory.iter().all(|byte| *byte == 0));
            memory[length - 1] = 7;
            let filled = memory.fill_ends().expect("memory");
            assert_eq!(bytes(&filled)[length - 2..], [0, 7]);
        }
        assert!(Memory::zeroed(usize::MAX).is_err(), "more than there is");
    }
}
