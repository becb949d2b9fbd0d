//! What comes of a matrix beside its codes, kept from where they were encoded until it is read itself.
//!
//! Parts of a matrix lie apart in a blob, and each read encodes for itself; but scales and biases are what is searched for,
//! and the search takes nearly all of the time. So who reads the codes leaves the rest here.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use crate::room::{Room, Share};

/// All parts of one matrix but the first, for groups that follow each other. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The groups that are known.
    groups: Range<usize>,
    /// The bytes of each part but the first, of all groups; empty before the first is known.
    parts: Vec<Vec<u8>>,
    /// Room for these.
    share: Option<Share>,
}

impl Beside {
    /// What is kept, unless somebody reads the matrix at this moment: that may be a task beneath this one on the same thread.
    fn free(&self) -> Option<MutexGuard<'_, Kept>> {
        match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Ok(kept) => Some(kept),
        }
    }

    /// Copies bytes of a part from `offset` on, if all of them are known.
    pub(super) fn copy(&self, part: usize, unit: usize, offset: usize, out: &mut [u8]) -> bool {
        let Some(kept) = self.free() else { return false };
        let Some(bytes) = part.checked_sub(1).and_then(|part| kept.parts.get(part)) else {
            return false;
        };
        let known = kept.groups.start * unit..kept.groups.end * unit;
        let end = offset + out.len(); // Within the part, as was asked before.
        let all = known.start <= offset && end <= known.end;
        if all {
            out.copy_from_slice(&bytes[offset..end]);
        }
        all
    }

    /// Lets `fill` write the parts of some groups, of so many bytes each, with `units` bytes of a group in each part, the first
    /// part's among them. They are known once that went well; not where `room` does not have enough for all of the matrix,
    /// which has `all` groups: then every read encodes anew.
    pub(super) fn fill<E>(
        &self,
        room: &Arc<Room>,
        groups: Range<usize>,
        all: usize,
        units: &[usize],
        fill: impl FnOnce(Vec<&mut [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = |unit: &usize| all.saturating_mul(*unit);
        let others = units.get(1..).unwrap_or_default();
        let Some(mut kept) = self.free() else { return fill(Vec::new()) };
        let Kept { groups: known, parts, share } = &mut *kept;
        if share.is_none() {
            *share = room.take(others.iter().map(bytes).fold(0, usize::saturating_add));
            if share.is_none() {
                return fill(Vec::new());
            }
            parts.extend(others.iter().map(|unit| vec![0; bytes(unit)]));
        }
        // Nothing is, should `fill` not come to its end.
        let follows = known.start <= groups.start && groups.start <= known.end;
        let before = std::mem::take(known);
        let slices = parts.iter_mut().zip(others);
        fill(
            slices.map(|(part, unit)| &mut part[groups.start * unit..groups.end * unit]).collect(),
        )?;
        *known = if follows { before.start..before.end.max(groups.end) } else { groups };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As much as every test here takes.
    const BYTES: usize = 150;

    /// Fills groups with a byte for each, or fails.
    fn fill(beside: &Beside, groups: Range<usize>, all: usize, result: Result<(), ()>) -> usize {
        let mut parts = 0;
        let first = groups.start;
        let filled = beside.fill(&Room::of(BYTES), groups, all, &[32, 2, 1], |slices| {
            parts = slices.len();
            for (slice, unit) in slices.into_iter().zip([2, 1]) {
                let bytes = slice.chunks_mut(unit).enumerate();
                bytes.for_each(|(group, bytes)| bytes.fill((first + group) as u8));
            }
            result
        });
        assert_eq!(filled, result);
        parts
    }

    fn known(beside: &Beside, groups: Range<usize>) -> bool {
        let mut bytes = vec![0; groups.len() * 2];
        let known = beside.copy(1, 2, groups.start * 2, &mut bytes);
        assert!(!known || bytes.chunks(2).zip(groups).all(|(two, group)| two == [group as u8; 2]));
        known
    }

    #[test]
    fn groups_that_follow_each_other_are_known() {
        let beside = Beside::default();
        assert!(!known(&beside, 0..1));
        assert_eq!(fill(&beside, 0..10, 50, Ok(())), 2);
        assert_eq!(fill(&beside, 9..20, 50, Ok(())), 2);
        assert!(known(&beside, 0..20) && known(&beside, 3..9) && !known(&beside, 0..21));
        let mut bytes = [0; 3];
        assert!(beside.copy(2, 1, 17, &mut bytes) && bytes == [17, 18, 19]);
        assert!(!beside.copy(0, 32, 0, &mut bytes), "the codes are not kept");
        // What does not follow begins anew.
        fill(&beside, 30..40, 50, Ok(()));
        assert!(known(&beside, 30..40) && !known(&beside, 0..1) && !known(&beside, 29..31));
    }

    #[test]
    fn nothing_is_known_of_what_failed_and_of_what_is_too_large() {
        let beside = Beside::default();
        fill(&beside, 0..10, 50, Ok(()));
        fill(&beside, 10..20, 50, Err(()));
        assert!(!known(&beside, 0..10) && !known(&beside, 10..20));
        assert_eq!(fill(&Beside::default(), 0..10, BYTES / 3 + 1, Ok(())), 0);
    }

    #[test]
    fn whoever_comes_meanwhile_does_without() {
        let beside = Beside::default();
        fill(&beside, 0..10, 50, Ok(()));
        let meanwhile = |_: Vec<&mut [u8]>| {
            assert!(!known(&beside, 0..10));
            assert_eq!(fill(&beside, 0..10, 50, Ok(())), 0);
            Ok::<(), ()>(())
        };
        beside.fill(&Room::of(BYTES), 0..10, 50, &[32, 2, 1], meanwhile).unwrap();
        assert!(known(&beside, 0..10));
    }
}
