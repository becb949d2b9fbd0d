//! When members were last heard of, and what they offered then: a file beside the authority. Nobody's place in the
//! cluster depends on it; losing it loses only that.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_identity::files;
use serde::{Deserialize, Serialize};
use tracing::warn;

const FILE: &str = "sightings.json";
/// More than this is no file of ours (bytes).
const MOST_BYTES: u64 = 16 << 20;
/// What is not older is not written again: many say every few seconds that they are there.
const FRESH: Duration = Duration::from_secs(15);
/// Members remembered; the longest unseen go first.
const MOST: usize = 16_384;

/// What is remembered of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sighting {
    /// When it was last heard of, in seconds since 1970 by the master's clock.
    pub seen_seconds: u64,
    /// What it last offered, if it ever said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The file. A handle.
#[derive(Clone, Debug)]
pub struct Sightings {
    path: PathBuf,
}

impl Sighting {
    /// How long ago that was; nothing if the clock has been put back since.
    pub fn ago(&self) -> Duration {
        Duration::from_secs(now().saturating_sub(self.seen_seconds))
    }
}

impl Sightings {
    /// In the authority's directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join(FILE) }
    }

    /// All of them, by the members' ids. What cannot be read is not known. Waits for a disk.
    pub fn read(&self) -> BTreeMap<String, Sighting> {
        let size = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        if size > MOST_BYTES {
            return BTreeMap::new();
        }
        let bytes = std::fs::read(&self.path).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Notes that these members are there now, with what each offers, if it said. Waits for a disk.
    pub fn note(&self, members: &[(String, Option<u64>)]) {
        if let Err(error) = self.update(|all| note(all, members, now())) {
            warn!(%error, "when members were last seen will not be remembered");
        }
    }

    /// Forgets a member. Waits for a disk.
    pub fn forget(&self, worker_id: &str) {
        self.update(|all| all.remove(worker_id).is_some()).ok(); // It is only not shown any more.
    }

    /// Processes take turns; what `change` says is unchanged is not written.
    fn update(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Sighting>) -> bool,
    ) -> std::io::Result<()> {
        let lock = files::open_lock(&self.path.with_extension("lock"))?;
        lock.lock()?;
        let mut all = self.read();
        if !change(&mut all) {
            return Ok(());
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer(&file, &all)?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Returns whether that is worth writing.
fn note(all: &mut BTreeMap<String, Sighting>, members: &[(String, Option<u64>)], now: u64) -> bool {
    let mut changed = false;
    for (worker_id, offers) in members {
        let known = all.get(worker_id).copied();
        let memory_bytes = offers.or(known.and_then(|known| known.memory_bytes));
        // A clock that was put back makes what is known as old as can be.
        let fresh = known.is_some_and(|known| {
            known.memory_bytes == memory_bytes && known.seen_seconds.abs_diff(now) < FRESH.as_secs()
        });
        if !fresh {
            all.insert(worker_id.clone(), Sighting { seen_seconds: now, memory_bytes });
            changed = true;
        }
    }
    while all.len() > MOST {
        let oldest = all.iter().min_by_key(|(_, seen)| seen.seen_seconds);
        let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
        all.remove(&oldest);
    }
    changed
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fresh_is_not_written_again_and_an_offer_stays_known() {
        let mut all = BTreeMap::new();
        let phone = |offers| [("phone".to_owned(), offers)];
        assert!(note(&mut all, &phone(Some(7)), 1000));
        assert!(!note(&mut all, &phone(None), 1014));
        assert!(note(&mut all, &phone(None), 1015));
        assert_eq!(all["phone"], Sighting { seen_seconds: 1015, memory_bytes: Some(7) });
        assert!(note(&mut all, &phone(Some(8)), 1016), "it offers something else");
        assert!(note(&mut all, &phone(None), 10), "the clock was put back");
    }

    #[test]
    fn garbage_is_nothing_known_and_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let sightings = Sightings::in_directory(directory.path());
        std::fs::write(directory.path().join(FILE), "{").expect("written");
        assert!(sightings.read().is_empty());
        sightings.note(&[("phone".to_owned(), Some(3))]);
        let known = sightings.read();
        assert_eq!(known["phone"].memory_bytes, Some(3));
        assert!(known["phone"].ago() < Duration::from_secs(60));
        sightings.forget("phone");
        assert!(sightings.read().is_empty());
    }
}
