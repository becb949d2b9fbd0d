//! What several stages take of the devices that they share: never more than each offers.
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cake_checkpoint::units::format_bytes;
use cake_engine::{DeviceKind, DeviceMemory};

/// Name of the memory that a device computes in: devices of the system's share it.
pub fn memory_of(device: DeviceKind) -> &'static str {
    match device.memory() {
        DeviceMemory::System => "system",
        DeviceMemory::Own => device.name(),
    }
}

/// Who takes how much of which device.
#[derive(Debug)]
pub struct Ledger<D> {
    entries: Mutex<Entries<D>>,
}

#[derive(Debug)]
struct Entries<D> {
    next: u64,
    taken: HashMap<u64, Vec<(D, u64)>>,
}

impl<D> Default for Ledger<D> {
    fn default() -> Self {
        Self { entries: Mutex::new(Entries { next: 0, taken: HashMap::new() }) }
    }
}

impl<D> Ledger<D> {
    fn entries(&self) -> MutexGuard<'_, Entries<D>> {
        // Each change leaves it whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wanted of a device, or taken there (bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share<D> {
    /// The device.
    pub device: D,
    /// So much of it.
    pub bytes: u64,
    /// What it offers in all.
    pub offered: u64,
}

/// A device has less left than is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} are needed of a device that offers {}, of which others take {}",
    format_bytes(*needed), format_bytes(*offered), format_bytes(*taken)
)]
pub struct Lacks {
    /// Bytes wanted.
    pub needed: u64,
    /// Bytes that it offers in all.
    pub offered: u64,
    /// Bytes that others take of them.
    pub taken: u64,
}

/// What one stage or model takes of a ledger's devices, until it is dropped.
#[derive(Debug)]
pub struct Account<D> {
    ledger: Arc<Ledger<D>>,
    number: u64,
}

impl<D: Eq + Hash + Clone> Account<D> {
    /// Takes nothing yet.
    pub fn new(ledger: Arc<Ledger<D>>) -> Self {
        let number = {
            let mut entries = ledger.entries();
            entries.next += 1;
            entries.next
        };
        Self { ledger, number }
    }

    /// Bytes that others take of `device`.
    pub fn others(&self, device: &D) -> u64 {
        others(&self.ledger.entries(), self.number, device)
    }

    /// Whether others take anything at all.
    pub fn has_others(&self) -> bool {
        self.ledger.entries().taken.keys().any(|number| *number != self.number)
    }

    /// Takes these instead of whatever was taken.
    ///
    /// # Errors
    /// [`Lacks`] of the first device that has less left; what was taken stays so.
    pub fn take(&self, shares: &[Share<D>]) -> Result<(), Lacks> {
        let mut entries = self.ledger.entries();
        let mut wanted: HashMap<&D, (u64, u64)> = HashMap::new();
        for Share { device, bytes, offered } in shares {
            let (sum, least) = wanted.entry(device).or_insert((0, *offered));
            *sum = sum.saturating_add(*bytes);
            *least = (*least).min(*offered);
        }
        for (device, (needed, offered)) in &wanted {
            let taken = others(&entries, self.number, device);
            if needed.saturating_add(taken) > *offered {
                return Err(Lacks { needed: *needed, offered: *offered, taken });
            }
        }
        let taken = wanted.into_iter().map(|(device, (bytes, _))| (device.clone(), bytes));
        let taken = taken.collect();
        entries.taken.insert(self.number, taken);
        Ok(())
    }
}

impl<D> Account<D> {
    /// Takes nothing any more.
    pub fn give_back(&self) {
        self.ledger.entries().taken.remove(&self.number);
    }
}

impl<D> Drop for Account<D> {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn others<D: Eq>(entries: &Entries<D>, number: u64, device: &D) -> u64 {
    let theirs = entries.taken.iter().filter(|(other, _)| **other != number);
    let of_device = theirs.flat_map(|(_, taken)| taken).filter(|(it, _)| it == device);
    of_device.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(device: &'static str, bytes: u64) -> Share<&'static str> {
        Share { device, bytes, offered: 10 }
    }

    #[test]
    fn nobody_takes_what_others_have_until_they_give_it_back() {
        let ledger = Arc::new(Ledger::default());
        let (one, other) = (Account::new(ledger.clone()), Account::new(ledger));
        assert!(!one.has_others());
        one.take(&[share("cpu", 6), share("cuda", 10)]).expect("there is room");
        let lacks = other.take(&[share("cpu", 5)]).expect_err("4 are left");
        assert_eq!(lacks, Lacks { needed: 5, offered: 10, taken: 6 });
        assert!(other.take(&[share("cpu", 4)]).is_ok() && one.has_others());
        assert_eq!((one.others(&"cpu"), other.others(&"cpu"), one.others(&"cuda")), (4, 6, 0));
        // What it has itself is in nobody's way, and what is refused changes nothing.
        assert!(one.take(&[share("cpu", 7)]).is_err());
        assert_eq!(other.others(&"cpu"), 6);
        one.take(&[share("cpu", 1)]).expect("fewer");
        assert_eq!(other.others(&"cuda"), 0);
        drop(one);
        assert!(other.take(&[share("cpu", 10)]).is_ok());
    }

    #[test]
    fn shares_of_one_device_count_together_and_no_sum_is_too_large() {
        let account = Account::new(Arc::new(Ledger::default()));
        assert!(account.take(&[share("cpu", 6), share("cpu", 5)]).is_err());
        assert!(account.take(&[share("cpu", u64::MAX), share("cpu", u64::MAX)]).is_err());
        assert!(account.take(&[share("cpu", 5), share("cpu", 5)]).is_ok());
    }
}
