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
///
/// ```
/// use std::sync::Arc;
///
/// use cake_stage::{Account, Ledger, Share};
///
/// let ledger = Arc::new(Ledger::default());
/// let share = |bytes| [Share { device: "phone", bytes, offered: 1000 }];
/// let [one, other] = [(); 2].map(|()| Account::new(ledger.clone()));
/// one.take(&share(600)).expect("it is free");
/// let lacks = other.take(&share(500)).unwrap_err();
/// assert_eq!((lacks.needed, lacks.taken), (500, 600));
/// drop(one); // And with it what it took.
/// other.take(&share(500)).expect("it is free again");
/// ```
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
        let taken = self.granted(&entries, shares)?;
        entries.taken.insert(self.number, taken.into_iter().collect());
        Ok(())
    }

    /// Takes these as well as what was taken, of each device the larger of both: whoever moves has one at a time there.
    /// [`Account::keep`] gives back what the old needed when it is gone.
    ///
    /// # Errors
    /// [`Lacks`] of the first device that has less left; what was taken stays so.
    pub fn take_either(&self, shares: &[Share<D>]) -> Result<(), Lacks> {
        let mut entries = self.ledger.entries();
        let mut both = self.granted(&entries, shares)?;
        for (device, bytes) in entries.taken.remove(&self.number).unwrap_or_default() {
            let taken = both.entry(device).or_insert(0);
            *taken = bytes.max(*taken);
        }
        entries.taken.insert(self.number, both.into_iter().collect());
        Ok(())
    }

    /// Gives back what is taken beyond these.
    pub fn keep(&self, shares: &[Share<D>]) {
        let needed = needed(shares);
        let mut entries = self.ledger.entries();
        let mut taken = entries.taken.remove(&self.number).unwrap_or_default();
        taken.retain_mut(|(device, bytes)| {
            *bytes = needed.get(device).map_or(0, |(needed, _)| (*bytes).min(*needed));
            *bytes > 0
        });
        if !taken.is_empty() {
            entries.taken.insert(self.number, taken);
        }
    }

    /// What these are of each device, if others leave so much.
    fn granted(&self, entries: &Entries<D>, shares: &[Share<D>]) -> Result<HashMap<D, u64>, Lacks> {
        let mut granted = HashMap::new();
        for (device, (needed, offered)) in needed(shares) {
            let taken = others(entries, self.number, &device);
            if needed.saturating_add(taken) > offered {
                return Err(Lacks { needed, offered, taken });
            }
            granted.insert(device, needed);
        }
        Ok(granted)
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

/// The bytes that all these want of each device, and what it offers by the least of them.
fn needed<D: Eq + Hash + Clone>(shares: &[Share<D>]) -> HashMap<D, (u64, u64)> {
    let mut all: HashMap<D, (u64, u64)> = HashMap::new();
    for Share { device, bytes, offered } in shares {
        let (sum, least) = all.entry(device.clone()).or_insert((0, *offered));
        *sum = sum.saturating_add(*bytes);
        *least = (*least).min(*offered);
    }
    all
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
    fn who_moves_holds_the_old_room_and_the_new_until_the_old_is_gone() {
        let ledger = Arc::new(Ledger::default());
        let (moving, other) = (Account::new(ledger.clone()), Account::new(ledger));
        moving.take(&[share("attic", 7), share("kitchen", 2)]).expect("there is room");
        let new = [share("kitchen", 6), share("phone", 5), share("attic", 1)];
        moving.take_either(&new).expect("there is room");
        let held = |device| other.others(&device);
        assert_eq!((held("attic"), held("kitchen"), held("phone")), (7, 6, 5));
        assert!(other.take(&[share("attic", 4)]).is_err(), "the old is not gone");
        moving.keep(&new);
        assert_eq!((held("attic"), held("kitchen"), held("phone")), (1, 6, 5));
        other.take(&[share("attic", 9)]).expect("it is gone");
        assert!(moving.take_either(&[share("attic", 2)]).is_err(), "others have it now");
        assert_eq!((held("attic"), held("phone")), (1, 5), "a refusal changes nothing");
        moving.keep(&[]);
        assert!(!other.has_others(), "nothing is left");
    }

    #[test]
    fn shares_of_one_device_count_together_and_no_sum_is_too_large() {
        let account = Account::new(Arc::new(Ledger::default()));
        assert!(account.take(&[share("cpu", 6), share("cpu", 5)]).is_err());
        assert!(account.take(&[share("cpu", u64::MAX), share("cpu", u64::MAX)]).is_err());
        assert!(account.take(&[share("cpu", 5), share("cpu", 5)]).is_ok());
    }
}
