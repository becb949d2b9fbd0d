//! Work that has not begun, so that what can be done at the same time is one section.

use super::stretches::Stretches;
use super::threads::{current_threads, for_each};

/// Least number of element operations worth waking another thread for.
///
/// A wake-up costs some ten microseconds, in which one core does about this much. In tests
/// nothing is too little, so that tiny models run on several threads too.
pub(crate) const PARALLEL_WORK: usize = if cfg!(test) { 1 } else { 1 << 16 };

/// Tasks `0..count` that read memory in their order, and whose neighbours write to the same cache lines
/// again and again, as those of neighbouring outputs do.
pub(crate) struct Tasks<'a> {
    count: usize,
    /// What all of them take together; for tasks that are done at the same time, in one unit.
    cost: usize,
    /// Whether they are worth several threads.
    parallel: bool,
    run: Box<dyn Fn(usize) + Sync + 'a>,
}

impl<'a> Tasks<'a> {
    /// `count` tasks that take `cost` together, such as bytes that they read; `parallel` if that is worth
    /// several threads.
    pub(crate) fn new(
        count: usize,
        cost: usize,
        parallel: bool,
        run: impl Fn(usize) + Sync + 'a,
    ) -> Tasks<'a> {
        Tasks { count, cost, parallel, run: Box::new(run) }
    }

    /// Runs all of them, one after the other, on this thread: for whoever is a task already.
    pub(crate) fn run_here(&self) {
        (0..self.count).for_each(&self.run);
    }
}

/// Runs all tasks of `all`, as if they were one after the other, on the threads of the current pool: in as
/// many stretches of neighbours as there are threads, of the same cost, each thread taking those of its
/// own first. One after the other on this thread if none are worth several.
///
/// # Panics
/// If a task does, with what it raised, once the others are done.
pub(crate) fn run_all(all: &[Tasks<'_>]) {
    let run = |mut task: usize| {
        for tasks in all {
            if task < tasks.count {
                return (tasks.run)(task);
            }
            task -= tasks.count;
        }
    };
    let count = all.iter().map(|tasks| tasks.count).sum();
    if count < 2 || !all.iter().any(|tasks| tasks.parallel) {
        return (0..count).for_each(run);
    }
    let parts: Vec<_> = all.iter().map(|tasks| (tasks.count, tasks.cost)).collect();
    let stretches = Stretches::new(&parts, current_threads());
    for_each(count, |_| run(stretches.take()));
}
