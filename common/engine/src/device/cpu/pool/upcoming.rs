//! Prefetches of what the next section reads, by threads that wait, since memory is what a step waits for.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::stretches;
use crate::device::cpu::isa::prefetch::{CACHE_LINE, prefetch};

/// Most bytes that a thread prefetches: they stay in a second-level cache of 1 MiB until they are read. Took 1 %
/// off a decoded token beside 8-bit weights on two threads, of which 2.5 % of the bytes had been prefetched.
const MOST: usize = 512 << 10;
/// Lines that are prefetched between two looks at what is waited for.
const LINES: usize = 4;

/// Where each thread begins to read.
pub(super) struct Upcoming(Vec<Begin>);

/// Bytes as an address and a length. Nobody reads them here, so that they need not be there any more; nor do
/// the two have to belong together, as those of somewhere else are prefetched in vain and no worse.
#[derive(Default)]
struct Begin {
    from: AtomicUsize,
    bytes: AtomicUsize,
}

/// How far a thread has prefetched the bytes that it will read first.
#[derive(Default)]
pub(super) struct Prefetched {
    /// The address that the others are counted from.
    from: usize,
    next: usize,
    end: usize,
}

impl Upcoming {
    /// Nothing, for so many threads.
    pub(super) fn new(threads: usize) -> Upcoming {
        Upcoming((0..threads.max(1)).map(|_| Begin::default()).collect())
    }

    /// These bytes, piece after piece.
    pub(super) fn set(&self, pieces: &[&[u8]]) {
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        for (thread, begin) in self.0.iter().enumerate() {
            let share = |thread: usize| total * thread / self.0.len();
            let (mut at, bytes) = (share(thread), share(thread + 1) - share(thread));
            let mut own: &[u8] = &[];
            for piece in pieces {
                if at < piece.len() {
                    own = &piece[at..];
                    break;
                }
                at -= piece.len();
            }
            begin.bytes.store(bytes.min(own.len()).min(MOST), Ordering::Relaxed);
            begin.from.store(own.as_ptr().addr(), Ordering::Relaxed);
        }
    }

    /// Prefetches some of the bytes that this thread will read first and has not prefetched; returns whether there were
    /// any.
    pub(super) fn prefetch(&self, prefetched: &mut Prefetched) -> bool {
        let begin = &self.0[stretches::own(self.0.len())];
        let from = begin.from.load(Ordering::Relaxed);
        if prefetched.from != from {
            *prefetched = Prefetched { from, next: 0, end: begin.bytes.load(Ordering::Relaxed) };
        }
        if prefetched.next >= prefetched.end {
            return false;
        }
        for _ in 0..LINES {
            prefetch(std::ptr::without_provenance(from.wrapping_add(prefetched.next)));
            prefetched.next += CACHE_LINE;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONCE: usize = LINES * CACHE_LINE;

    /// Where a thread begins to prefetch what follows each other, and how often it does.
    fn prefetched(pieces: &[&[u8]], (thread, threads): (usize, usize)) -> (usize, usize) {
        let upcoming = Upcoming::new(threads);
        upcoming.set(pieces);
        stretches::set_index(thread);
        let mut prefetched = Prefetched::default();
        let mut times = 0;
        while upcoming.prefetch(&mut prefetched) {
            times += 1;
        }
        stretches::set_index(0);
        (prefetched.from, times)
    }

    #[test]
    fn every_thread_asks_for_the_beginning_of_its_own_stretch() {
        let bytes = vec![0; 3 * MOST];
        let at = |offset: usize| bytes[offset..].as_ptr().addr();
        assert_eq!(prefetched(&[&bytes[..40 * ONCE]], (0, 2)), (at(0), 20));
        assert_eq!(prefetched(&[&bytes[..40 * ONCE]], (1, 2)), (at(20 * ONCE), 20));
        assert_eq!(prefetched(&[&bytes], (1, 2)), (at(3 * MOST / 2), MOST / ONCE));
        assert_eq!(prefetched(&[], (0, 2)).1, 0);
        // Thirty here and ten there: the second thread begins in the first piece, as far as that goes.
        let pieces: [&[u8]; 2] = [&bytes[..30 * ONCE], &bytes[MOST..][..10 * ONCE]];
        assert_eq!(prefetched(&pieces, (0, 2)), (at(0), 20));
        assert_eq!(prefetched(&pieces, (1, 2)), (at(20 * ONCE), 10));
        assert_eq!(prefetched(&pieces, (3, 4)), (at(MOST), 10));
    }

    #[test]
    fn what_was_asked_for_is_not_asked_for_again_until_it_is_something_else() {
        let bytes = vec![0; 8 * ONCE];
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let (upcoming, mut prefetched) = (Upcoming::new(1), Prefetched::default());
        for part in [first, second, first] {
            upcoming.set(&[part]);
            let times =
                std::iter::from_fn(|| upcoming.prefetch(&mut prefetched).then_some(())).count();
            assert_eq!(times, 4);
            assert!(!upcoming.prefetch(&mut prefetched));
        }
    }
}
