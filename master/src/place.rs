//! Where the master's own weights lie: its layers and its head, mapped or copied as a worker's are.
use std::sync::{Mutex, PoisonError};

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Encoding, HUGE_PAGE_BYTES, MappedTensor};
use cake_engine::{Placement, Weights, placement};

/// Puts the master's own weights where they shall lie; remembers what it measured, for whatever is loaded after it.
#[derive(Debug, Default)]
pub struct OwnWeights {
    wanted: Weights,
    placement: Placement,
    /// How ends were stored that lie where they shall, so that what can be measured of such was.
    seen: Mutex<Vec<Encoding>>,
}

/// Why they cannot be there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A copy was asked for and would take the memory of others.
    #[error(
        "--weights copy takes {} of memory on the master, and what it computes with {} more; this \
         machine can give {}: --weights map leaves weights in their files",
        format_bytes(*weights), format_bytes(*later), format_bytes(*free)
    )]
    NoRoom {
        /// Bytes to be copied.
        weights: u64,
        /// Bytes allocated after them.
        later: u64,
        /// Bytes that this machine has free, less a reserve.
        free: u64,
    },
    /// The system refuses.
    #[error(transparent)]
    Place(#[from] placement::Error),
}

impl OwnWeights {
    /// Weights lie where `wanted` says; `lock` keeps the system from dropping or swapping them.
    pub fn new(wanted: Weights, lock: bool) -> Self {
        Self { wanted, placement: Placement::new(wanted, lock), seen: Mutex::default() }
    }

    /// Whether ends that are stored so were put anywhere before. What is measured then is measured once, and others should be
    /// quiet meanwhile.
    pub fn has_seen(&self, encoding: Encoding) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(&encoding)
    }

    /// Remembers that they were.
    pub fn note_seen(&self, encoding: Encoding) {
        if !self.has_seen(encoding) {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(encoding);
        }
    }

    /// Bytes that copying takes beside the weights, if it was asked for.
    pub fn copy_bytes(&self) -> u64 {
        self.placement.copy_bytes()
    }

    /// Puts `tensors`, with their names for messages, where they shall lie.
    ///
    /// * `offered_bytes`: what the plan leaves beside them before anything else is allocated.
    /// * `later_bytes`: of that, what is allocated afterwards.
    /// * `threads`: how many will compute with them.
    ///
    /// # Errors
    /// [`Error`]; those copied until then stay copied.
    pub fn settle(
        &self,
        tensors: Vec<(String, &mut MappedTensor)>,
        offered_bytes: u64,
        later_bytes: u64,
        threads: usize,
    ) -> Result<(), Error> {
        let mapped = tensors.iter().filter(|(_, tensor)| tensor.is_mapped());
        let weights: u64 = mapped.map(|(_, tensor)| tensor.bytes().len() as u64).sum();
        let room =
            match (room(weights, later_bytes, cake_platform::default_budget(0).bytes), self.wanted)
            {
                (Ok(room), _) => room.min(offered_bytes),
                (Err(refusal), Weights::Copy) => return Err(refusal),
                (Err(_), Weights::Map | Weights::Auto) => 0,
            };
        self.placement.settle(&mut [tensors], room, threads, &mut || Ok::<_, Error>(()))?;
        Ok(())
    }

    /// Keeps tensors in memory, where they are, if that was asked for.
    ///
    /// # Errors
    /// If the system does not.
    pub fn keep<'a>(&self, tensors: impl Iterator<Item = &'a MappedTensor>) -> Result<(), Error> {
        Ok(self.placement.keep(tensors).map_err(placement::Error::from)?)
    }
}

/// What is left where `free` bytes are, once `weights` bytes are copied and `later` bytes allocated after that. The page
/// cache that the weights come from counts as free: the system drops it for them.
///
/// # Errors
/// If something is to be copied, and not even one piece of it has room beside that.
fn room(weights: u64, later: u64, free: u64) -> Result<u64, Error> {
    let room = free.checked_sub(weights.saturating_add(later));
    match room.filter(|room| *room >= HUGE_PAGE_BYTES as u64) {
        Some(room) => Ok(room),
        None if weights == 0 => Ok(0),
        None => Err(Error::NoRoom { weights, later, free }),
    }
}

#[cfg(test)]
mod tests {
    use cake_checkpoint::FloatType;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn ends_that_are_stored_otherwise_are_new() {
        let own = OwnWeights::default();
        let [one, other] = [FloatType::F16, FloatType::BF16].map(Encoding::Float);
        assert!(!own.has_seen(one));
        own.note_seen(one);
        own.note_seen(one);
        assert!(own.has_seen(one) && !own.has_seen(other));
    }

    #[test]
    fn a_copy_needs_room_for_what_comes_later_and_for_one_piece() {
        assert_eq!(room(10 * MIB, 3 * MIB, 15 * MIB).ok(), Some(2 * MIB));
        let refusal = room(10 * MIB, 3 * MIB, 15 * MIB - 1).expect_err("no room").to_string();
        for part in ["takes 10 MiB", "3 MiB more", "--weights map"] {
            assert!(refusal.contains(part), "{part} in {refusal}");
        }
        assert!(room(1, u64::MAX, u64::MAX).is_err());
        assert_eq!(room(0, u64::MAX, 0).ok(), Some(0), "there is nothing to copy");
        assert_eq!(room(0, 3 * MIB, 40 * MIB).ok(), Some(37 * MIB), "something may be gathered");
    }
}
