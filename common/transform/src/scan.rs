//! Reading all tensors of a source, on all threads, in the order in which they lie there.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::job::Observer;

/// How far a scan is; a handle for its threads.
pub(crate) struct Scan<'a> {
    observer: &'a dyn Observer,
    total: u64,
    done: AtomicU64,
    stop: AtomicBool,
}

impl Scan<'_> {
    /// Counts bytes that were read; whether to go on.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if somebody asked to stop.
    pub(crate) fn read(&self, bytes: u64) -> Result<(), Error> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.observer.progress(done, self.total);
        match self.stop.load(Ordering::Relaxed) || self.observer.is_cancelled() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }
}

/// Does `each` for all items, which have `total` bytes to be read, and gives what they gave in their order.
///
/// # Errors
/// The first of any.
pub(crate) fn scan<I: Sync, T: Send>(
    items: &[I],
    total: u64,
    threads: usize,
    observer: &dyn Observer,
    each: impl Fn(&Scan<'_>, &I) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let scan = Scan { observer, total, done, stop };
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Result<T, Error>)>> = Mutex::new(Vec::with_capacity(items.len()));
    let add = |index, outcome: Result<T, Error>| {
        let failed = outcome.is_err();
        found.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        if failed {
            scan.stop.store(true, Ordering::Relaxed); // After its error is there, so that it comes first.
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    if scan.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    add(index, each(&scan, item));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = found.iter().position(|(_, outcome)| outcome.is_err()) {
        let (_, outcome) = found.swap_remove(first);
        return Err(outcome.err().expect("it was just seen to be one"));
    }
    found.sort_by_key(|(index, _)| *index);
    Ok(found.into_iter().filter_map(|(_, outcome)| outcome.ok()).collect())
}
