//! Who joined, and who of them is there.
use std::collections::BTreeMap;
use std::time::Duration;

use cake_identity::{Peer, WorkerEntry, lines};
use futures_util::future::join_all;
use serde::Serialize;

use crate::cluster::look;
use crate::membership::Membership;
use crate::sightings::Sighting;

/// How long a member may take to say that it is there.
const LOOK: Duration = Duration::from_secs(2);

/// A worker that joined, as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct Known {
    /// What is remembered of it.
    #[serde(flatten)]
    pub entry: WorkerEntry,
    /// Whether it answers; none of one that connects by itself, as it may be connected to another process of this
    /// master, and of one that is shut out, which is not asked.
    pub online: Option<bool>,
    /// Which other master holds it.
    pub held_by: Option<String>,
    /// When it was last heard of, in seconds since 1970.
    pub seen_seconds: Option<u64>,
    /// What it last offered.
    pub memory_bytes: Option<u64>,
}

/// Asks all of them at once whether they are there, for the master called `master`.
pub async fn call(membership: &Membership, workers: Vec<WorkerEntry>, master: &str) -> Vec<Known> {
    let offers = join_all(workers.iter().map(|entry| async move {
        let asked = !entry.revoked && lines::worker_at(&entry.address).is_none();
        if !asked {
            return None;
        }
        // Somebody else may be where it was.
        let expected = Peer::Worker(entry.worker_id.clone());
        let security = membership.security();
        let said = tokio::time::timeout(LOOK, look(security, &entry.address)).await;
        let offer = said.ok().and_then(Result::ok).map(|(_, offer)| offer);
        Some(offer.filter(|offer| expected == Peer::Worker(offer.worker_id.clone())))
    }));
    let offers = offers.await;
    let there = workers.iter().zip(&offers).filter_map(|(entry, offer)| {
        Some((entry.worker_id.clone(), Some(offer.as_ref()?.as_ref()?.budget_bytes())))
    });
    membership.seen(there.collect()).await;
    let sightings: BTreeMap<String, Sighting> = membership.sightings().await;
    let known = workers.into_iter().zip(offers).map(|(entry, offer)| {
        let sighting = sightings.get(&entry.worker_id);
        Known {
            online: offer.as_ref().map(Option::is_some),
            held_by: offer.flatten().and_then(|offer| offer.held_by_another(master)),
            seen_seconds: sighting.map(|sighting| sighting.seen_seconds),
            memory_bytes: sighting.and_then(|sighting| sighting.memory_bytes),
            entry,
        }
    });
    known.collect()
}
