//! Which processors the arithmetic runs on, where a device has fast and slow ones.
//!
//! Tasks of a section are shared out as threads ask for them, but no section is over before its
//! slowest task: a thread on a slow processor holds up those on fast ones.

use std::path::Path;

/// Threads to compute with when nobody names a number: the fast processors that this process may
/// use, or all where the system does not tell them apart; no more than its control group's quota of
/// processor time.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    ranking().map_or(allowed, |ranking| ranking.fast.clamp(1, allowed))
}

/// Processors in the order of their speed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Ranking {
    /// The fastest first.
    order: Vec<usize>,
    /// How many of them are fast.
    fast: usize,
}

impl Ranking {
    /// Of `processors`, as the system whose devices are listed under `sys` tells; nothing if it does
    /// not, or if they are all alike.
    fn read(sys: &Path, processors: &[usize]) -> Option<Ranking> {
        let speeds = capacities(sys, processors).or_else(|| kinds(sys, processors))?;
        let (most, least) = (*speeds.iter().max()?, *speeds.iter().min()?);
        if most == least {
            return None;
        }
        let mut order: Vec<_> = processors.iter().copied().zip(&speeds).collect();
        order.sort_by_key(|(_, speed)| std::cmp::Reverse(**speed));
        // Phones have a few processors that are faster still; those at half of that are not slow.
        let fast = speeds.iter().filter(|speed| **speed * 2 >= most).count();
        Some(Ranking { order: order.into_iter().map(|(processor, _)| processor).collect(), fast })
    }
}

/// What ARM systems tell of each processor: its speed, 1024 for the fastest
/// (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu).
fn capacities(sys: &Path, processors: &[usize]) -> Option<Vec<u64>> {
    let read = |processor: &usize| {
        let file = sys.join(format!("devices/system/cpu/cpu{processor}/cpu_capacity"));
        std::fs::read_to_string(file).ok()?.trim().parse::<u32>().ok().map(u64::from)
    };
    processors.iter().map(read).collect()
}

/// What x86 systems with two kinds of cores tell: which processors belong to performance cores.
fn kinds(sys: &Path, processors: &[usize]) -> Option<Vec<u64>> {
    let list = std::fs::read_to_string(sys.join("devices/cpu_core/cpus")).ok()?;
    let fast = ranges(list.trim())?;
    let is_fast = |processor: &usize| fast.iter().any(|range| range.contains(processor));
    Some(processors.iter().map(|processor| u64::from(is_fast(processor))).collect())
}

/// A list as the kernel writes it: `0-3,8,10-11`.
fn ranges(list: &str) -> Option<Vec<std::ops::RangeInclusive<usize>>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    list.split(',').map(range).collect()
}

/// The processors that so many threads of arithmetic keep to: the fastest, if that leaves any out.
pub(crate) fn fastest(threads: usize) -> Option<Vec<usize>> {
    let mut order = ranking()?.order;
    (threads < order.len()).then(|| {
        order.truncate(threads);
        order
    })
}

#[cfg(target_os = "linux")]
fn ranking() -> Option<Ranking> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let most = rustix::thread::CpuSet::MAX_CPU;
    let processors: Vec<usize> = (0..most).filter(|index| allowed.is_set(*index)).collect();
    Ranking::read(Path::new("/sys"), &processors)
}

/// Lets this thread run on these processors alone; where the system refuses, it runs anywhere.
#[cfg(target_os = "linux")]
pub(crate) fn keep_to(processors: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(?processors, %error, "threads stay where the system puts them");
    }
}

/// Other systems do not tell.
#[cfg(not(target_os = "linux"))]
fn ranking() -> Option<Ranking> {
    None
}

/// Other systems do not take orders.
#[cfg(not(target_os = "linux"))]
pub(crate) fn keep_to(_: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as the system's, with these files.
    fn sys(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join("devices").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    fn read(files: &[(&str, &str)], processors: &[usize]) -> Option<(Vec<usize>, usize)> {
        let ranking = Ranking::read(sys(files).path(), processors)?;
        Some((ranking.order, ranking.fast))
    }

    #[test]
    fn capacities_of_a_phone_put_the_fastest_first() {
        let files = [
            ("system/cpu/cpu0/cpu_capacity", "250\n"),
            ("system/cpu/cpu1/cpu_capacity", "250\n"),
            ("system/cpu/cpu2/cpu_capacity", "780\n"),
            ("system/cpu/cpu3/cpu_capacity", "1024\n"),
        ];
        assert_eq!(read(&files, &[0, 1, 2, 3]), Some((vec![3, 2, 0, 1], 2)));
        assert_eq!(read(&files, &[0, 2]), Some((vec![2, 0], 1)), "of those it may use");
        assert_eq!(read(&files, &[0, 1]), None, "they are alike");
        assert_eq!(read(&files, &[0, 3, 4]), None, "one is not told of");
    }

    #[test]
    fn performance_cores_of_a_laptop_come_first() {
        let files = [("cpu_core/cpus", "2-3,5\n"), ("cpu_atom/cpus", "0-1,4\n")];
        assert_eq!(read(&files, &[0, 1, 2, 3, 4, 5]), Some((vec![2, 3, 5, 0, 1, 4], 3)));
        assert_eq!(read(&files, &[0, 4]), None, "no fast one among them");
    }

    #[test]
    fn what_cannot_be_read_tells_nothing() {
        assert_eq!(read(&[], &[0, 1]), None);
        assert_eq!(read(&[("cpu_core/cpus", "0-x")], &[0, 1]), None);
        assert_eq!(read(&[("cpu_core/cpus", "")], &[0, 1]), None);
        assert_eq!(read(&[("system/cpu/cpu0/cpu_capacity", "fast")], &[0]), None);
        assert_eq!(read(&[("cpu_core/cpus", "0")], &[]), None);
    }

    #[test]
    fn threads_by_default_are_at_least_one_and_no_more_than_there_are() {
        let allowed = std::thread::available_parallelism().unwrap().get();
        assert!((1..=allowed).contains(&default_threads()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_keeps_to_the_processors_it_is_given() {
        std::thread::spawn(|| {
            let allowed = || {
                let set = rustix::thread::sched_getaffinity(None).unwrap();
                let most = rustix::thread::CpuSet::MAX_CPU;
                (0..most).filter(|index| set.is_set(*index)).collect::<Vec<usize>>()
            };
            let before = allowed();
            keep_to(&before[..1]);
            assert_eq!(allowed(), before[..1]);
            keep_to(&[]); // Refused, and nothing changes.
            assert_eq!(allowed(), before[..1]);
        })
        .join()
        .unwrap();
    }
}
