//! Which blobs go when room is needed: a pure choice.

use std::time::SystemTime;

use cake_checkpoint::Digest;

/// A stored blob, whole or partial, that nobody is writing.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) name: Digest,
    pub(super) bytes: u64,
    pub(super) last_used: SystemTime,
    /// In use: it stays.
    pub(super) spared: bool,
}

/// What goes and what that leaves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Choice {
    /// Least recently used first.
    pub(super) victims: Vec<Digest>,
    /// Bytes the victims free.
    pub(super) freed_bytes: u64,
    /// Bytes stored once they are gone; more than the target if what is in use exceeds it.
    pub(super) kept_bytes: u64,
}

/// Chooses blobs least recently used until at most `target_bytes` of `stored_bytes` are left.
/// Ties go by name.
pub(super) fn choose(candidates: &[Candidate], stored_bytes: u64, target_bytes: u64) -> Choice {
    let mut order: Vec<&Candidate> = candidates.iter().filter(|blob| !blob.spared).collect();
    order.sort_by_key(|blob| (blob.last_used, blob.name));
    let mut choice = Choice { kept_bytes: stored_bytes, ..Choice::default() };
    for blob in order {
        if choice.kept_bytes <= target_bytes {
            break;
        }
        choice.victims.push(blob.name);
        choice.freed_bytes = choice.freed_bytes.saturating_add(blob.bytes);
        choice.kept_bytes = choice.kept_bytes.saturating_sub(blob.bytes);
    }
    choice
}

/// Bytes that pruning everything would free.
pub(super) fn evictable_bytes(candidates: &[Candidate]) -> u64 {
    let unused = candidates.iter().filter(|blob| !blob.spared);
    unused.map(|blob| blob.bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use super::super::tests::digest;

    fn candidates(ages: &[(u64, u64, bool)]) -> Vec<Candidate> {
        let candidate = |(index, (bytes, seconds, spared)): (usize, &(u64, u64, bool))| Candidate {
            name: digest(&[index as u8]),
            bytes: *bytes,
            last_used: SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds),
            spared: *spared,
        };
        ages.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn the_least_recently_used_goes_first_and_no_more_than_needed() {
        let blobs = candidates(&[(10, 3, false), (10, 1, false), (10, 2, false)]);
        let choice = choose(&blobs, 30, 15);
        assert_eq!(choice.victims, [blobs[1].name, blobs[2].name]);
        assert_eq!((choice.freed_bytes, choice.kept_bytes), (20, 10));
        assert!(choose(&blobs, 30, 30).victims.is_empty());
    }

    #[test]
    fn what_is_in_use_stays() {
        let blobs = candidates(&[(10, 1, true), (10, 2, false)]);
        let choice = choose(&blobs, 20, 0);
        assert_eq!(choice.victims, [blobs[1].name]);
        assert_eq!(choice.kept_bytes, 10);
        assert_eq!(evictable_bytes(&blobs), 10);
    }
}
