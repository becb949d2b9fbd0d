//! Sections run every task once, whatever the threads, the callers and the tasks do.

use std::collections::HashSet;
use std::sync::Barrier;

use super::*;
use crate::device::cpu::pool::{Tasks, run_all};
use crate::testing::Random;

/// Sections of one test, of which Miri takes its time.
const SECTIONS: u64 = if cfg!(miri) { 50 } else { 100_000 };

/// How often each of `0..tasks` was run by one call of [`for_each`].
fn counts(tasks: usize) -> Vec<usize> {
    let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    for_each(tasks, |task| {
        counts[task].fetch_add(1, Ordering::Relaxed);
    });
    counts.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_of_many_short_sections_runs_once() {
    for threads in [1, 2, 3, 8] {
        let mut random = Random::new(threads as u64);
        let mut sums = [0u64; 20];
        let mut expected = 0;
        Pool::new(threads).unwrap().install(|| {
            for section in 0..SECTIONS {
                let tasks = random.below(20);
                // Written without synchronisation: a task that ran twice, late or on an old
                // closure would leave a wrong sum.
                for_each_mut(&mut sums[..tasks], |task, sum| *sum += section * task as u64);
                expected += (0..tasks as u64).map(|task| section * task).sum::<u64>();
            }
        });
        assert_eq!(sums.iter().sum::<u64>(), expected, "{threads} threads");
    }
}

#[test]
fn every_task_of_tasks_that_are_run_together_runs_once() {
    let pool = Pool::new(3).unwrap();
    for tasks in 0..40 {
        for parallel in [true, false] {
            let ran = Mutex::new(Vec::new());
            let run = |task| lock(&ran).push(task);
            let (first, rest) = (tasks / 4, tasks - tasks / 4);
            let rest = Tasks::new(rest, 1, false, |task| run(first + task));
            pool.install(|| run_all(&[Tasks::new(first, 9, parallel, run), rest]));
            let mut ran = ran.into_inner().unwrap();
            if parallel {
                ran.sort_unstable();
            }
            assert_eq!(ran, Vec::from_iter(0..tasks));
        }
    }
}

#[test]
fn sections_after_a_pause_find_their_helpers() {
    let pool = Pool::new(3).unwrap();
    for pause in [0, 1, 50, 120, 1000] {
        pool.install(|| {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(pause));
                assert_eq!(counts(7), [1; 7], "after {pause} µs");
            }
        });
    }
}

#[test]
fn all_threads_take_part() {
    let pool = Pool::new(3).unwrap();
    let all = Barrier::new(3); // Passed only if three threads have a task each.
    let names = Mutex::new(HashSet::new());
    pool.install(|| {
        assert_eq!(current_threads(), 3);
        for_each(3, |_| {
            all.wait();
            let name = std::thread::current().name().map(str::to_owned);
            names.lock().unwrap().insert(name);
        });
    });
    let own = std::thread::current().name().map(str::to_owned);
    let expected = [own, Some("cake-math-1".to_owned()), Some("cake-math-2".to_owned())];
    assert_eq!(names.into_inner().unwrap(), HashSet::from(expected));
}

#[test]
fn zero_threads_are_as_many_as_by_default() {
    let threads = crate::default_threads();
    assert_eq!(Pool::new(0).unwrap().install(current_threads), threads);
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
#[test]
fn threads_keep_to_their_processors_and_the_caller_only_while_it_computes() {
    use crate::device::cpu::pool::processors::allowed;
    let before = allowed().unwrap();
    let pool = Pool::keeping_to(Some(Arc::from(&before[..1])), 2).unwrap();
    let seen = Mutex::new(Vec::new());
    pool.install(|| for_each(64, |_| seen.lock().unwrap().push(allowed().unwrap())));
    assert!(seen.into_inner().unwrap().iter().all(|processors| *processors == before[..1]));
    assert_eq!(allowed().unwrap(), before);
}

#[test]
fn without_a_pool_and_inside_a_task_everything_runs_on_the_caller() {
    let own = std::thread::current().id();
    assert_eq!(current_threads(), 1);
    for_each(5, |_| assert_eq!(std::thread::current().id(), own));
    let (outer, inner) = (Pool::new(2).unwrap(), Pool::new(2).unwrap());
    outer.install(|| {
        for_each(4, |_| {
            let here = std::thread::current().id();
            assert_eq!(current_threads(), 1);
            for_each(4, |_| assert_eq!(std::thread::current().id(), here));
            assert_eq!(outer.install(|| counts(9)), [1; 9]);
            assert_eq!(inner.install(|| counts(9)), [1; 9]);
        });
        assert_eq!(current_threads(), 2);
    });
    assert_eq!(current_threads(), 1);
}

#[test]
fn callers_at_the_same_time_each_get_their_tasks_done() {
    let pool = Pool::new(3).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                pool.install(|| {
                    for tasks in (0..SECTIONS as usize / 50).map(|index| index % 13) {
                        assert_eq!(counts(tasks), vec![1; tasks]);
                    }
                });
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_other_tasks() {
    let pool = Pool::new(2).unwrap();
    // Unwinding takes an interpreter long.
    for bad in (0..10).step_by(if cfg!(miri) { 5 } else { 1 }) {
        let done = AtomicUsize::new(0);
        let run = || {
            pool.install(|| {
                for_each(10, |task| {
                    assert!(task != bad, "task {bad} fails");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            });
        };
        let raised = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(raised.downcast_ref::<String>().unwrap(), &format!("task {bad} fails"));
        assert_eq!(done.into_inner(), 9);
        assert_eq!(current_threads(), 1);
        assert_eq!(pool.install(|| counts(10)), [1; 10], "the next section is whole");
    }
}

#[test]
fn dropping_a_pool_ends_its_threads() {
    let pool = Pool::new(4).unwrap();
    assert_eq!(pool.install(|| counts(8)), [1; 8]);
    let shared = Arc::downgrade(&pool.shared);
    drop(pool);
    assert_eq!(shared.strong_count(), 0, "each helper held one");
}
