//! What differs between systems, each behind one function with a plain fallback.
//!
//! Nothing here decides anything: the store asks for disk space and durable renames, the worker
//! asks what memory and how many threads it may offer, and who it is.

mod allocator;
mod battery;
mod cgroup;
mod disk;
mod memory;
mod priority;

pub(crate) use allocator::return_freed_memory;
pub use battery::{Battery, battery};
pub(crate) use disk::{DiskSpace, free_space};
pub use memory::{MemoryOffer, ProcessMemory, default_budget, free_memory, process_memory};
pub use priority::{give_way, process_gives_way};

pub use cake_engine::default_threads;

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
