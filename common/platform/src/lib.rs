//! What differs between systems, each fact behind one function with a plain fallback.
//!
//! Start with the function that you need: [`free_memory`] and [`default_budget`] (what a device can offer),
//! [`process_memory`] (what this process holds), [`free_space`] (a disk's room), [`is_at`] (a file that is locked),
//! [`is_hollow`] (a file of which only the beginning is there),
//! [`raise_open_files`] (how many files may be open), [`battery`], [`temperature`], [`host_name`], [`give_way`] and [`process_gives_way`]
//! (priorities), [`processor`] (its model), [`return_freed_memory`] (the allocator), [`interrupts`] (Ctrl-C).
//!
//! Invariants:
//! - Nothing here decides anything beyond the default of what a device offers: callers get numbers and choose.
//! - Where a system does not tell, a function says what holds on any system, or `None`; it never fails the caller.
//!   [`free_space`] alone returns an error: its path may not exist.
//! - No network, no models, no tensors. What only the arithmetic asks of a system (processors, huge pages) stays in the
//!   engine; what only the store asks of a file system stays in the worker.

mod allocator;
mod battery;
mod cgroup;
mod descriptors;
mod disk;
mod held;
mod hollow;
mod interrupts;
mod memory;
mod priority;
mod processor;
mod temperature;

pub use allocator::return_freed_memory;
pub use battery::{Battery, battery};
pub use descriptors::raise_open_files;
pub use disk::{DISK_RESERVE, DiskSpace, free_space};
pub use held::is_at;
pub use hollow::is_hollow;
pub use interrupts::interrupts;
pub use memory::{MemoryOffer, ProcessMemory, default_budget, free_memory, process_memory};
pub use priority::{give_way, process_gives_way};
pub use processor::processor;
pub use temperature::temperature;

/// This device's name without its domain, or `worker` where the system does not tell one.
pub fn host_name() -> String {
    short_name(sysinfo::System::host_name().unwrap_or_default().as_str())
}

/// The first label of a host name, kept to characters that need no quoting on a command line.
fn short_name(host: &str) -> String {
    let label = host.split('.').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = label.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "worker".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(short_name("phone.local"), "phone");
        assert_eq!(short_name("Anna's iPad"), "Anna-s-iPad");
        assert_eq!(short_name(""), "worker");
        assert_eq!(short_name(".."), "worker");
        assert!(!host_name().is_empty());
    }
}
