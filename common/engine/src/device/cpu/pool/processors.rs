//! Which processors the arithmetic runs on, where a device has fast and slow ones.
//!
//! No section of the pool is over before its slowest task, so threads keep to the fast processors as
//! long as there are enough of them; which of these, the system decides, as it knows what else runs. No
//! machine with two kinds of processors was at hand to measure what this gains.

use std::path::Path;
use std::sync::OnceLock;

/// Part of a device's speed that its fast processors must have for the slow ones to be left out by
/// default: half the threads of a device that is mostly slow processors would be too few for prompts.
const FAST_PART: (u64, u64) = (2, 3);

/// Threads to compute with when nobody names a number: the processors that this process may use, less the
/// slow ones where the system tells them apart and the others have most of the speed; no more than the
/// quota of processor time of its control group.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    ranking().and_then(Ranking::enough).unwrap_or(allowed).clamp(1, allowed)
}

/// The processors that so many threads of arithmetic keep to, if not all.
pub(crate) fn kept_by(threads: usize) -> Option<Vec<usize>> {
    if cfg!(miri) {
        return None; // It has no processors.
    }
    ranking()?.keep(threads)
}

/// Processors in the order of their speed.
#[derive(Debug)]
struct Ranking {
    /// With their speeds, the fastest first.
    order: Vec<(usize, u64)>,
    /// How many of them are fast.
    fast: usize,
}

impl Ranking {
    /// Of `processors`, as the system whose devices are listed under `sys` tells; nothing if it does
    /// not, or if they are all alike.
    fn read(sys: &Path, processors: &[usize]) -> Option<Ranking> {
        let speeds = arm_speeds(sys, processors).or_else(|| x86_speeds(sys, processors))?;
        let (most, least) = (*speeds.iter().max()?, *speeds.iter().min()?);
        if most == least {
            return None;
        }
        let mut order: Vec<_> = processors.iter().copied().zip(speeds).collect();
        order.sort_by_key(|(_, speed)| std::cmp::Reverse(*speed));
        // Phones have one or two that are faster still; those above half of that are not slow.
        let fast = order.iter().filter(|(_, speed)| speed * 2 > most).count();
        Some(Ranking { order, fast })
    }

    /// How many fast processors there are, if they are enough.
    fn enough(&self) -> Option<usize> {
        let speed = |some: &[(usize, u64)]| some.iter().map(|(_, speed)| speed).sum::<u64>();
        let (part, whole) = FAST_PART;
        let enough = speed(&self.order[..self.fast]) * whole >= speed(&self.order) * part;
        enough.then_some(self.fast)
    }

    /// All fast ones, or as many of the fastest as there are threads if these are more.
    fn keep(&self, threads: usize) -> Option<Vec<usize>> {
        let kept = threads.max(self.fast);
        let first = self.order.get(..kept).filter(|first| first.len() < self.order.len())?;
        Some(first.iter().map(|(processor, _)| *processor).collect())
    }
}

/// What ARM systems tell of each processor: its speed, 1024 for the fastest
/// (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu).
fn arm_speeds(sys: &Path, processors: &[usize]) -> Option<Vec<u64>> {
    let read = |processor: &usize| {
        let file = sys.join(format!("devices/system/cpu/cpu{processor}/cpu_capacity"));
        std::fs::read_to_string(file).ok()?.trim().parse::<u32>().ok().map(u64::from)
    };
    processors.iter().map(read).collect()
}

/// What x86 systems with two kinds of cores tell: which processors belong to performance cores. The
/// others are taken to be half as fast.
fn x86_speeds(sys: &Path, processors: &[usize]) -> Option<Vec<u64>> {
    let list = std::fs::read_to_string(sys.join("devices/cpu_core/cpus")).ok()?;
    let fast = ranges(list.trim())?;
    let speed = |processor| if fast.iter().any(|range| range.contains(processor)) { 2 } else { 1 };
    Some(processors.iter().map(speed).collect())
}

/// A list as the kernel writes it: `0-3,8,10-11`.
fn ranges(list: &str) -> Option<Vec<std::ops::RangeInclusive<usize>>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').map(range).collect()
}

/// Those that this process might use when it was first asked.
fn ranking() -> Option<&'static Ranking> {
    static RANKING: OnceLock<Option<Ranking>> = OnceLock::new();
    RANKING.get_or_init(|| Ranking::read(Path::new("/sys"), &system::allowed()?)).as_ref()
}

/// Makes this thread keep to some processors, and lets it go where it might before when dropped.
pub(crate) struct Kept(Option<Vec<usize>>);

impl Kept {
    /// Where the system refuses, the thread runs anywhere.
    pub(crate) fn to(processors: &[usize]) -> Kept {
        let before = system::allowed();
        if before.as_deref() == Some(processors) {
            return Kept(None);
        }
        Kept(before.filter(|_| system::allow(processors)))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            system::allow(before);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The processors that this thread may run on, in order.
    pub(crate) fn allowed() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|index| set.is_set(*index)).collect())
    }

    /// Lets this thread run on these alone; whether the system does so.
    pub(super) fn allow(processors: &[usize]) -> bool {
        let mut set = CpuSet::new();
        processors.iter().for_each(|processor| set.set(*processor));
        sched_setaffinity(None, &set).is_ok()
    }
}

/// Other systems tell nothing and take no orders.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    pub(crate) fn allowed() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn allow(_: &[usize]) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) use system::allowed;

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranking of a system with these files.
    fn read(files: &[(&str, &str)], processors: &[usize]) -> Option<Ranking> {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join("devices").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        Ranking::read(root.path(), processors)
    }

    /// The order of the processors and how many are fast.
    fn ranked(files: &[(&str, &str)], processors: &[usize]) -> Option<(Vec<usize>, usize)> {
        let Ranking { order, fast } = read(files, processors)?;
        Some((order.into_iter().map(|(processor, _)| processor).collect(), fast))
    }

    fn ranking(speeds: &[u64], fast: usize) -> Ranking {
        Ranking { order: speeds.iter().copied().enumerate().collect(), fast }
    }

    #[test]
    fn capacities_of_a_phone_put_the_fastest_first() {
        let files = [
            ("system/cpu/cpu0/cpu_capacity", "250\n"),
            ("system/cpu/cpu1/cpu_capacity", "250\n"),
            ("system/cpu/cpu2/cpu_capacity", "780\n"),
            ("system/cpu/cpu3/cpu_capacity", "1024\n"),
        ];
        assert_eq!(ranked(&files, &[0, 1, 2, 3]), Some((vec![3, 2, 0, 1], 2)));
        assert_eq!(ranked(&files, &[0, 2]), Some((vec![2, 0], 1)), "of those it may use");
        assert_eq!(ranked(&files, &[0, 1]), None, "they are alike");
        assert_eq!(ranked(&files, &[0, 3, 4]), None, "one is not told of");
    }

    #[test]
    fn performance_cores_of_a_laptop_come_first() {
        let files = [("cpu_core/cpus", "2-3,5\n"), ("cpu_atom/cpus", "0-1,4\n")];
        assert_eq!(ranked(&files, &[0, 1, 2, 3, 4, 5]), Some((vec![2, 3, 5, 0, 1, 4], 3)));
        assert_eq!(ranked(&files, &[0, 4]), None, "no fast one among them");
    }

    #[test]
    fn what_cannot_be_read_tells_nothing() {
        assert!(read(&[], &[0, 1]).is_none());
        assert!(read(&[("cpu_core/cpus", "0-x")], &[0, 1]).is_none());
        assert!(read(&[("cpu_core/cpus", "")], &[0, 1]).is_none());
        assert!(read(&[("system/cpu/cpu0/cpu_capacity", "fast")], &[0]).is_none());
        assert!(read(&[("cpu_core/cpus", "0")], &[]).is_none());
    }

    #[test]
    fn threads_keep_to_all_fast_processors_and_to_more_only_if_they_are_more() {
        let phone = ranking(&[1024, 780, 250, 250], 2);
        assert_eq!(phone.keep(1), Some(vec![0, 1]), "the system chooses among the fast ones");
        assert_eq!(phone.keep(2), Some(vec![0, 1]));
        assert_eq!(phone.keep(3), Some(vec![0, 1, 2]));
        assert_eq!(phone.keep(4), None);
        assert_eq!(phone.keep(9), None);
    }

    #[test]
    fn slow_processors_are_left_out_where_the_fast_ones_have_most_of_the_speed() {
        assert_eq!(ranking(&[1024, 1024, 1024, 1024, 250, 250, 250, 250], 4).enough(), Some(4));
        assert_eq!(ranking(&[1024, 1024, 400, 400, 400, 400, 400, 400], 2).enough(), None);
        assert_eq!(ranking(&[2, 1, 1, 1, 1, 1, 1, 1, 1], 1).enough(), None);
    }

    #[test]
    fn threads_by_default_are_at_least_one_and_no_more_than_there_are() {
        let allowed = std::thread::available_parallelism().unwrap().get();
        assert!((1..=allowed).contains(&default_threads()));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_thread_keeps_to_the_processors_it_is_given_for_a_time() {
        std::thread::spawn(|| {
            let before = system::allowed().unwrap();
            {
                let _kept = Kept::to(&before[..1]);
                assert_eq!(system::allowed().unwrap(), before[..1]);
                let _refused = Kept::to(&[]);
                assert_eq!(system::allowed().unwrap(), before[..1]);
            }
            assert_eq!(system::allowed().unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
