//! What a worker keeps for one lease of its master: a stage, and the blobs that it asked for.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cake_checkpoint::Digest;
use cake_stage::Ledger;
use tokio::sync::RwLock;

use crate::runtime::Runtime;
use crate::store::{InUse, Store};

/// What belongs to one lease, and goes with it.
pub(crate) struct Tenant {
    /// The loaded stage.
    pub(crate) runtime: Runtime,
    pins: Mutex<HashMap<Digest, InUse>>, // Blobs that were asked for.
    /// Pushes share it; a probe, a load and the putting away each have it alone, so that no two stages of one lease are
    /// there at once and no work outlives it.
    pub(crate) work: Arc<RwLock<()>>,
}

impl Tenant {
    /// Nothing is loaded; what is goes into `ledger`.
    pub(crate) fn new(worker: &str, ledger: Arc<Ledger<String>>) -> Self {
        let runtime = Runtime::new(worker, ledger);
        Self { runtime, pins: Mutex::default(), work: Arc::default() }
    }

    /// Ends the stage; what it computed with rests, as the next plan of this master needs most of it. Whoever calls
    /// it has `work` alone.
    pub(crate) fn unload(&self) {
        self.runtime.unload();
        self.lock_pins().clear(); // The next plan asks for what it needs.
    }

    /// Puts away all that was computed with under this lease. As [`Tenant::unload`].
    pub(crate) fn put_away(&self) {
        self.runtime.clear();
        self.lock_pins().clear();
    }

    /// Which of these `store` holds. Asked for means planned: from now on making room for one blob does
    /// not evict another of them.
    pub(crate) fn pin_and_list(&self, store: &Store, names: &[String]) -> Vec<String> {
        let mut pins = self.lock_pins();
        let mut held = Vec::new();
        for (name, digest) in names.iter().filter_map(|name| Some((name, name.parse().ok()?))) {
            pins.entry(digest).or_insert_with(|| store.pin(&digest));
            if store.holds(&digest) {
                held.push(name.clone());
            }
        }
        held
    }

    fn lock_pins(&self) -> MutexGuard<'_, HashMap<Digest, InUse>> {
        // Only whole entries come and go: a poisoned lock still holds a usable map.
        self.pins.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
