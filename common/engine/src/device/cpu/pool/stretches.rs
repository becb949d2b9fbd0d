//! Tasks in stretches, one for each thread, so that a thread goes on where it was.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Which of its pool's threads this one is: 0 for those that call, the others are helpers.
    static INDEX: Cell<usize> = const { Cell::new(0) };
}

/// Says which helper this thread is, from 1 on.
pub(super) fn set_index(index: usize) {
    INDEX.set(index);
}

/// Which of `threads` this thread is.
pub(super) fn own(threads: usize) -> usize {
    INDEX.get() % threads
}

/// Where the stretch of thread `thread` of `threads` begins, so that all have the same cost, in parts that
/// follow each other, each (so many tasks, what they take together): a part, and a task of that.
pub(super) fn begin(parts: &[(usize, usize)], (thread, threads): (usize, usize)) -> (usize, usize) {
    if thread == 0 {
        return (0, 0); // Also where the first ones cost nothing.
    }
    let wide = |number: usize| number as u128;
    let total: u128 = parts.iter().map(|(_, cost)| wide(*cost)).sum();
    let mut before = 0;
    for (index, (tasks, cost)) in parts.iter().enumerate() {
        // In units of a thread's part of the cost.
        let (from, cost) = (before * wide(threads), wide(*cost) * wide(threads));
        let at = total * wide(thread);
        if at < from + cost {
            return (index, ((at - from) * wide(*tasks) / cost) as usize);
        }
        before += cost / wide(threads);
    }
    (parts.len(), 0)
}

/// Tasks `0..tasks`, shared out: every thread takes those of a stretch of its own in order, then
/// the last ones of others.
pub(super) struct Stretches(Vec<Stretch>);

/// What nobody has taken of a stretch: the first task in the upper half, the one behind the last in
/// the lower one. Alone in a cache line, as its thread changes it for every task.
#[repr(align(64))]
struct Stretch(AtomicU64);

impl Stretches {
    /// As many stretches as there are threads, of tasks in these parts, see [`begin`].
    pub(super) fn new(parts: &[(usize, usize)], threads: usize) -> Stretches {
        let tasks: usize = parts.iter().map(|(tasks, _)| tasks).sum();
        u32::try_from(tasks).expect("fewer than 2^32 tasks");
        let begin = |thread: usize| {
            if thread == threads {
                return tasks as u64; // Also where nothing costs anything.
            }
            let (part, task) = begin(parts, (thread, threads));
            parts[..part].iter().map(|(tasks, _)| *tasks as u64).sum::<u64>() + task as u64
        };
        let stretch = |thread| Stretch(AtomicU64::new(begin(thread) << 32 | begin(thread + 1)));
        Stretches((0..threads).map(stretch).collect())
    }

    /// A task that this thread is to run; there is one for each of as many calls as there are
    /// tasks.
    pub(super) fn take(&self) -> usize {
        let own = own(self.0.len());
        let others = (own + 1..self.0.len()).chain(0..own);
        let first = self.0[own].take(|left| left.start);
        // When all were found empty, all tasks were taken, each by a call of its own.
        let stolen =
            || others.into_iter().find_map(|other| self.0[other].take(|left| left.end - 1));
        first.or_else(stolen).expect("no more calls than tasks")
    }
}

impl Stretch {
    /// Takes one of those left, which is the first or the last.
    fn take(&self, which: impl Fn(&Range<u64>) -> u64) -> Option<usize> {
        let halves = |both: u64| both >> 32..both & u64::from(u32::MAX);
        let less = |both| {
            let Range { start, end } = halves(both);
            let left = start..end;
            let taken = (start < end).then(|| which(&left))?;
            Some(if taken == start { (start + 1) << 32 | end } else { start << 32 | (end - 1) })
        };
        // A claim is all that is told: what tasks work on is released and acquired by the pool.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.ok().map(|both| which(&halves(both)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_its_own_in_order_and_then_the_last_of_others() {
        let stretches = Stretches::new(&[(7, 7)], 3);
        set_index(1);
        let taken: Vec<usize> = (0..7).map(|_| stretches.take()).collect();
        set_index(0);
        assert_eq!(taken, [2, 3, 6, 5, 4, 1, 0]);
    }

    #[test]
    fn stretches_begin_where_as_much_is_before_them_as_is_theirs() {
        let parts = [(16, 400), (16, 100), (8, 100)];
        assert_eq!(begin(&parts, (0, 2)), (0, 0));
        assert_eq!(begin(&parts, (1, 2)), (0, 12));
        assert_eq!(begin(&parts, (2, 3)), (1, 0));
        assert_eq!(begin(&parts, (5, 6)), (2, 0));
        assert_eq!(begin(&parts, (11, 12)), (2, 4));
        // Whatever costs nothing belongs to the thread before, what is first to the first; all of it, to the first.
        assert_eq!(begin(&[(3, 0), (2, 2), (5, 0)], (0, 2)), (0, 0));
        assert_eq!(begin(&[(3, 0), (2, 2), (5, 0)], (1, 2)), (1, 1));
        assert_eq!(begin(&[(3, 0)], (1, 2)), (1, 0));
        assert_eq!(begin(&[(usize::MAX, usize::MAX); 2], (1, 2)), (1, 0));
    }

    #[test]
    fn every_task_is_taken_once_by_however_many_threads() {
        for (tasks, threads) in [(1, 2), (5, 2), (64, 3), (1_000, 4)] {
            let parts = [(tasks / 5, 0), (tasks / 3, 5), (tasks - tasks / 5 - tasks / 3, 1)];
            let stretches = Stretches::new(&parts, threads);
            let calls = std::sync::atomic::AtomicUsize::new(0);
            let taken = std::sync::Mutex::new(vec![0; tasks]);
            std::thread::scope(|scope| {
                for index in 0..threads {
                    let (stretches, calls, taken) = (&stretches, &calls, &taken);
                    scope.spawn(move || {
                        set_index(index);
                        while calls.fetch_add(1, Ordering::Relaxed) < tasks {
                            taken.lock().unwrap()[stretches.take()] += 1;
                        }
                    });
                }
            });
            assert_eq!(taken.into_inner().unwrap(), vec![1; tasks], "{tasks} on {threads}");
        }
    }
}
