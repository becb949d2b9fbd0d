//! Where members are said to be on this network: what proves to be true is written down where a hello is.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use cake_discovery::{News, Sighting};
use cake_identity::{Peer, WorkerEntry};
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::membership::Membership;

/// Least time between two rounds of proofs, however much is heard.
const REST: Duration = Duration::from_millis(250);

/// Follows what is heard until nothing is heard any more. Whoever proves to be elsewhere than the book says is
/// noted there; what is said of others than members is not looked at, so that no more is kept than there are
/// members.
pub async fn follow(membership: Membership, mut news: mpsc::Receiver<News>) {
    while let Some(first) = news.recv().await {
        let mut seen = BTreeMap::new();
        let members = members(&membership).await;
        let mut next = Some(first);
        while let Some(heard) = next {
            if let News::Seen(Sighting { id, addresses }) = heard
                && members.iter().any(|member| member.worker_id == id)
            {
                seen.insert(id, addresses); // The latest counts.
            }
            next = news.try_recv().ok();
        }
        let looks =
            members.iter().filter_map(|member| Some((member, seen.get(&member.worker_id)?)));
        join_all(looks.map(|(member, addresses)| look(&membership, member, addresses))).await;
        tokio::time::sleep(REST).await;
    }
}

/// Waits until all members are where the book says, or `limit` is over.
pub async fn gather(membership: &Membership, limit: Duration) {
    let mut there = BTreeSet::new();
    let all_there = async {
        loop {
            let mut missing = members(membership).await;
            missing.retain(|member| !there.contains(&member.worker_id));
            let looks = missing.iter().map(|member| is_there(membership, member, &member.address));
            let found = join_all(looks).await;
            let found = missing.iter().zip(found).filter(|(_, found)| *found);
            let before = there.len();
            there.extend(found.map(|(member, _)| member.worker_id.clone()));
            if there.len() - before == missing.len() {
                return;
            }
            tokio::time::sleep(REST).await;
        }
    };
    tokio::time::timeout(limit, all_there).await.ok();
}

/// Those that joined. Reads a file.
async fn members(membership: &Membership) -> Vec<WorkerEntry> {
    let membership = membership.clone();
    tokio::task::spawn_blocking(move || membership.members()).await.unwrap_or_default()
}

/// Notes where a member is if it is not where it was, but at one of these addresses.
async fn look(membership: &Membership, member: &WorkerEntry, addresses: &[SocketAddr]) {
    if is_there(membership, member, &member.address).await {
        return;
    }
    let places: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let found = join_all(places.iter().map(|place| is_there(membership, member, place))).await;
    let Some((place, _)) = places.iter().zip(found).find(|(_, found)| *found) else {
        let said = places.join(", ");
        debug!(worker = member.name, said, "a member is not where somebody says that it is");
        return;
    };
    let Some(authority) = membership.authority().cloned() else { return };
    let (worker_id, from, to) = (member.worker_id.clone(), member.address.clone(), place.clone());
    let note = move || authority.book().moved(&worker_id, &from, &to);
    match tokio::task::spawn_blocking(note).await {
        Ok(Ok(_)) => {
            info!(worker = member.name, address = place, "a member is found on the network");
            membership.news.notify_one();
        }
        Ok(Err(error)) => warn!(%error, "where a member is will not be remembered"),
        Err(_) => {}
    }
}

async fn is_there(membership: &Membership, member: &WorkerEntry, address: &str) -> bool {
    let expected = Peer::Worker(member.worker_id.clone());
    membership.security().finds(address, &expected).await
}
