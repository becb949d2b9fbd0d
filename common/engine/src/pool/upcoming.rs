//! What the next section reads, for threads that wait: they ask memory for it meanwhile, since memory is what
//! a step waits for.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::stretches;
use crate::kernel::{CACHE_LINE, prefetch};

/// Most bytes that a thread asks for: they stay in a second-level cache of 1 MiB until they are read. Took 1 %
/// off a decoded token beside 8-bit weights on two threads, of which asking had gone on for 2.5 % of the bytes.
const MOST: usize = 512 << 10;
/// Lines that are asked for between two looks at what is waited for.
const LINES: usize = 4;

/// Bytes as an address and a length. Nobody reads them here, so that they need not be there any more; nor do
/// the two have to belong together, as those of somewhere else are asked for in vain and no worse.
#[derive(Default)]
pub(super) struct Upcoming {
    from: AtomicUsize,
    bytes: AtomicUsize,
}

/// How far a thread has asked for those that it will read first.
#[derive(Default)]
pub(super) struct Asked {
    /// The address that the others are counted from.
    from: usize,
    next: usize,
    end: usize,
}

impl Upcoming {
    pub(super) fn set(&self, bytes: &[u8]) {
        self.bytes.store(bytes.len(), Ordering::Relaxed);
        self.from.store(bytes.as_ptr().addr(), Ordering::Relaxed);
    }

    /// Asks for some of what this thread, one of `threads`, will read first and has not asked for; returns
    /// whether there was any.
    pub(super) fn ask(&self, threads: usize, asked: &mut Asked) -> bool {
        let from = self.from.load(Ordering::Relaxed);
        if asked.from != from {
            let own = stretches::own(self.bytes.load(Ordering::Relaxed), threads);
            *asked = Asked { from, next: own.start, end: own.end.min(own.start + MOST) };
        }
        if asked.next >= asked.end {
            return false;
        }
        for _ in 0..LINES {
            prefetch(std::ptr::without_provenance(from.wrapping_add(asked.next)));
            asked.next += CACHE_LINE;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a thread begins to ask for `bytes`, and how often it asks.
    fn asked(bytes: &[u8], thread: usize, threads: usize) -> (usize, usize) {
        let upcoming = Upcoming::default();
        upcoming.set(bytes);
        stretches::set_index(thread);
        let mut asked = Asked::default();
        let mut times = 0;
        while upcoming.ask(threads, &mut asked) {
            times += 1;
        }
        stretches::set_index(0);
        (asked.next - times * LINES * CACHE_LINE, times)
    }

    #[test]
    fn every_thread_asks_for_the_beginning_of_its_own_stretch() {
        let bytes = vec![0; 3 * MOST];
        let once = LINES * CACHE_LINE;
        assert_eq!(asked(&bytes[..40 * once], 0, 2), (0, 20));
        assert_eq!(asked(&bytes[..40 * once], 1, 2), (20 * once, 20));
        assert_eq!(asked(&bytes, 1, 2), (3 * MOST / 2, MOST / once));
        assert_eq!(asked(&[], 0, 2), (0, 0));
    }

    #[test]
    fn what_was_asked_for_is_not_asked_for_again_until_it_is_something_else() {
        let bytes = vec![0; 8 * LINES * CACHE_LINE];
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let (upcoming, mut asked) = (Upcoming::default(), Asked::default());
        for part in [first, second, first] {
            upcoming.set(part);
            let times = std::iter::from_fn(|| upcoming.ask(1, &mut asked).then_some(())).count();
            assert_eq!(times, 4);
            assert!(!upcoming.ask(1, &mut asked));
        }
    }
}
