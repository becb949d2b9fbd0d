//! Who is shut out.
use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::Peer;

/// Workers that are shut out. A handle: clones share one list.
#[derive(Clone, Debug)]
pub struct Revoked(Arc<watch::Sender<BTreeSet<String>>>);

impl Default for Revoked {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeSet::new())))
    }
}

impl Revoked {
    /// Replaces the list; connections with these workers end at once.
    pub fn set(&self, worker_ids: impl IntoIterator<Item = String>) {
        let ids: BTreeSet<String> = worker_ids.into_iter().collect();
        self.0.send_if_modified(|now| {
            let changed = *now != ids;
            *now = ids;
            changed
        });
    }

    /// The list, as it is and as it changes.
    pub fn watch(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.subscribe()
    }

    pub(crate) fn has(&self, peer: &Peer) -> bool {
        matches!(peer, Peer::Worker(id) if self.0.borrow().contains(id))
    }
}
