//! How much memory this process may offer, and how much it uses.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cake_checkpoint::units::format_bytes;

use crate::cgroup;

/// Least memory left to the rest of the device.
const MIN_RESERVE_BYTES: u64 = 256 << 20;

/// Part of the free memory left to the rest of the device: one tenth.
const RESERVE_DIVISOR: u64 = 10;

/// Memory a worker can offer when the person named no amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOffer {
    /// Bytes for weights, KV cache, scratch and the process together.
    pub bytes: u64,
    /// Where the number comes from, one sentence for people.
    pub why: String,
}

/// Physical memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessMemory {
    /// Bytes resident now.
    pub resident_bytes: u64,
    /// Those of them that are of no file; all where the system does not tell.
    pub anonymous_bytes: u64,
    /// Most bytes ever resident; where the system does not keep it, the most seen by this function.
    pub peak_bytes: u64,
}

/// What this process may use: what the system has available or its control group leaves,
/// whichever is less, less a reserve of 10 % (at least 256 MiB, and at least `kept_bytes`).
///
/// ```
/// use cake_platform::default_budget;
///
/// let offer = default_budget(0);
/// println!("{} bytes: {}", offer.bytes, offer.why);
/// let less = default_budget(u64::MAX);
/// assert_eq!(less.bytes, 0, "all is kept for others");
/// ```
pub fn default_budget(kept_bytes: u64) -> MemoryOffer {
    let (available_bytes, limit) = available();
    offer(available_bytes, limit, kept_bytes)
}

/// Bytes that the system has available or this process's control group leaves, whichever is less.
pub fn free_memory() -> u64 {
    let (available_bytes, limit) = available();
    limit.map_or(available_bytes, |limit| limit.free_bytes.min(available_bytes))
}

/// What the system has available (bytes), and the control group's limit.
fn available() -> (u64, Option<cgroup::Limit>) {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let limit = cgroup::memory_limit(&|path: &Path| std::fs::read_to_string(path).ok());
    (system.available_memory(), limit)
}

/// The offer that follows from what the system and the control group leave.
fn offer(available_bytes: u64, limit: Option<cgroup::Limit>, kept_bytes: u64) -> MemoryOffer {
    let (free_bytes, source) = match limit {
        Some(limit) if limit.free_bytes < available_bytes => (
            limit.free_bytes,
            format!(
                "{} left of the limit of {} set by {}",
                format_bytes(limit.free_bytes),
                format_bytes(limit.limit_bytes),
                limit.group.display()
            ),
        ),
        _ => {
            (available_bytes, format!("{} available on this system", format_bytes(available_bytes)))
        }
    };
    let reserve_bytes = MIN_RESERVE_BYTES.max(free_bytes / RESERVE_DIVISOR).max(kept_bytes);
    MemoryOffer {
        bytes: free_bytes.saturating_sub(reserve_bytes),
        why: format!("{source}, less a reserve of {}", format_bytes(reserve_bytes)),
    }
}

/// Memory of this process, from the kernel's own count where it has one.
pub fn process_memory() -> ProcessMemory {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| parse_status(&status))
        .unwrap_or_else(sampled_memory)
}

/// `VmRSS`, `RssAnon` and `VmHWM` of `/proc/self/status`, whose values are in KiB.
fn parse_status(status: &str) -> Option<ProcessMemory> {
    let value = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let resident_bytes = value("VmRSS")?;
    Some(ProcessMemory {
        resident_bytes,
        anonymous_bytes: value("RssAnon").unwrap_or(resident_bytes),
        peak_bytes: value("VmHWM").unwrap_or(resident_bytes),
    })
}

/// Memory of this process where there is no `/proc`.
fn sampled_memory() -> ProcessMemory {
    static PEAK_BYTES: AtomicU64 = AtomicU64::new(0);
    let mut system = sysinfo::System::new();
    let resident_bytes = sysinfo::get_current_pid().map_or(0, |pid| {
        system.refresh_processes(sysinfo::ProcessesToUpdate::Some(&[pid]), false);
        system.process(pid).map_or(0, sysinfo::Process::memory)
    });
    let before = PEAK_BYTES.fetch_max(resident_bytes, Ordering::Relaxed);
    let peak_bytes = before.max(resident_bytes);
    ProcessMemory { resident_bytes, anonymous_bytes: resident_bytes, peak_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const GIB: u64 = 1 << 30;

    fn limit(free_bytes: u64) -> Option<cgroup::Limit> {
        Some(cgroup::Limit {
            free_bytes,
            limit_bytes: 4 * GIB,
            group: PathBuf::from("/sys/fs/cgroup/w"),
        })
    }

    #[test]
    fn offers_what_the_system_has_less_a_tenth() {
        let offer = offer(10 * GIB, None, 0);
        assert_eq!(offer.bytes, 9 * GIB);
        assert!(offer.why.contains("available on this system"), "{}", offer.why);
    }

    #[test]
    fn a_tighter_control_group_decides() {
        let tight = offer(10 * GIB, limit(GIB), 0);
        assert_eq!(tight.bytes, GIB - MIN_RESERVE_BYTES);
        assert!(tight.why.contains("/sys/fs/cgroup/w"), "{}", tight.why);
        assert_eq!(offer(GIB, limit(2 * GIB), 0).bytes, GIB - MIN_RESERVE_BYTES);
        assert_eq!(offer(10 * GIB, limit(4 * GIB), GIB).bytes, 3 * GIB);
    }

    #[test]
    fn a_system_with_less_than_the_reserve_offers_nothing() {
        assert_eq!(offer(100 << 20, None, 0).bytes, 0);
    }

    #[test]
    fn process_status_is_read_in_kib() {
        let status = "Name:\tcake\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nThreads:\t3\n";
        let (resident_bytes, anonymous_bytes) = (1 << 20, 1 << 20);
        let expected = ProcessMemory { resident_bytes, anonymous_bytes, peak_bytes: 2 << 20 };
        assert_eq!(parse_status(status), Some(expected));
        let more = format!("{status}RssAnon:\t     512 kB\n");
        assert_eq!(
            parse_status(&more),
            Some(ProcessMemory { anonymous_bytes: 512 << 10, ..expected })
        );
        assert_eq!(parse_status("VmRSS: x kB\n"), None);
        assert_eq!(parse_status("VmRSS: 18446744073709551615 kB\n"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        for memory in [process_memory(), sampled_memory()] {
            assert!(memory.resident_bytes > 0);
            assert!(memory.peak_bytes >= memory.resident_bytes);
        }
        assert!(!default_budget(0).why.is_empty());
    }
}
