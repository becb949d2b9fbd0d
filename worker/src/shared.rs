//! What all calls to one worker share, and what lives as long as a master's hold on it.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cake_engine::Placement;
use cake_identity::random_token;
use cake_proto::{PROTOCOL, VERSION, limits, shut_out, wire};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::NOTES;
use crate::config::{Config, DeviceOffer};
use crate::lease::{LeaseBook, LeaseGuard};
use crate::membership::Membership;
use crate::runtime::{self, Runtime, Ticket};
use crate::store::Store;
use crate::tenant::Tenant;
use cake_stage::{Ledger, OVERHEAD_BYTES};

/// What the clones of a worker's service share.
pub(crate) struct Shared {
    /// How it was started.
    pub(crate) config: Config,
    /// The id that stays with its store.
    pub(crate) worker_id: String,
    /// Differs each time the process starts.
    pub(crate) instance: String,
    /// Its blobs.
    pub(crate) store: Store,
    /// Whose worker it is.
    pub(crate) membership: Membership,
    /// Who holds it.
    pub(crate) leases: LeaseBook,
    tenants: Mutex<HashMap<String, Arc<Tenant>>>, // By their leases.
    ledger: Arc<Ledger<String>>,
    /// Where weights lie.
    pub(crate) placement: Placement,
    /// Whoever has it puts weights there.
    pub(crate) settling: Mutex<()>,
    /// Changes when the present hold must end, since what its master said cannot be gone by.
    pub(crate) misled: watch::Sender<()>,
    /// Why this worker would like to be let go, if it would.
    pub(crate) leaving: watch::Sender<Option<String>>,
}

impl Shared {
    /// Nothing is loaded, nobody holds it.
    pub(crate) fn new(
        config: Config,
        worker_id: String,
        store: Store,
        membership: Membership,
    ) -> Self {
        Self {
            instance: random_token(),
            leases: LeaseBook::default(),
            tenants: Mutex::default(),
            ledger: Arc::default(),
            placement: Placement::new(config.weights, config.lock_memory),
            settling: Mutex::default(),
            misled: watch::Sender::new(()),
            leaving: watch::Sender::new(None),
            config,
            worker_id,
            store,
            membership,
        }
    }

    /// What is kept for the lease of this token, while it lives.
    pub(crate) fn tenant(&self, lease: &str) -> Option<Arc<Tenant>> {
        self.tenants().get(lease).cloned()
    }

    /// The stages of all leases.
    pub(crate) fn runtimes(&self) -> Vec<Runtime> {
        self.tenants().values().map(|tenant| tenant.runtime.clone()).collect()
    }

    /// Whether there is a stage of any lease.
    pub(crate) fn has_stages(&self) -> bool {
        self.runtimes().iter().any(|runtime| runtime.ticket().is_ok())
    }

    /// The stage that a stream with this pipeline's token feeds.
    ///
    /// # Errors
    /// [`runtime::Error`] if there is none.
    pub(crate) fn fed_by(&self, token: Option<&str>) -> Result<(Runtime, Ticket), runtime::Error> {
        let mut refused = runtime::Error::NotLoaded { worker: self.config.name.clone() };
        for runtime in self.runtimes() {
            match runtime.check_pipeline(token) {
                Ok(ticket) => return Ok((runtime, ticket)),
                Err(error @ runtime::Error::Pipeline { .. }) => refused = error,
                Err(_) => {}
            }
        }
        Err(refused)
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<String, Arc<Tenant>>> {
        // Only whole entries come and go.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this worker says of itself. Reads the disk.
    pub(crate) fn describe(&self) -> wire::Description {
        let Shared { config, worker_id, store, leases, .. } = self;
        let memory = cake_platform::process_memory();
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        wire::Description {
            worker_id: worker_id.clone(),
            name: self.name(),
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            overhead_bytes: OVERHEAD_BYTES,
            threads: config.threads as u32,
            free_disk_bytes: store.free_disk().unwrap_or(0),
            clock_ms: u64::try_from(clock.as_millis()).unwrap_or(u64::MAX),
            held_by: leases.holder().unwrap_or_default(),
            blobs: store
                .list()
                .iter()
                .take(limits::BLOBS)
                .map(|blob| blob.name.to_string())
                .collect(),
            resident_bytes: memory.resident_bytes,
            peak_bytes: memory.peak_bytes,
            store: config.store.display().to_string(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            devices: config.devices.iter().map(DeviceOffer::describe).collect(),
            instance: self.instance.clone(),
            processor: cake_platform::processor(),
            prefetch: cake_engine::tuning().map_or_else(String::new, |tuning| tuning.to_string()),
            store_limit_bytes: store.limit_bytes().unwrap_or(0),
            stored_bytes: store.stored_bytes(),
            partial: store
                .list_partial()
                .iter()
                .take(limits::BLOBS)
                .map(|blob| (blob.name.to_string(), blob.bytes))
                .collect(),
        }
    }

    /// What this worker says of itself to another one: enough to tell whether it is the one that was looked for.
    pub(crate) fn describe_to_peer(&self) -> wire::Description {
        wire::Description {
            worker_id: self.worker_id.clone(),
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            ..wire::Description::default()
        }
    }

    /// Keeps what was measured of the processor, for the next start.
    pub(crate) fn keep_tuning(&self) {
        let kept = cake_stage::keep_tuning(&self.config.store, &cake_platform::processor());
        if let Err(error) = kept {
            warn!(%error, "what was measured of the processor will be measured again");
        }
    }

    /// What people call this worker.
    fn name(&self) -> String {
        self.membership.name().unwrap_or_else(|| self.config.name.clone())
    }

    /// Talks no more to these workers.
    ///
    /// # Errors
    /// If the list cannot be read. The old one stays; whoever sent this one must not go on as if it had arrived.
    pub(crate) fn shut_out(&self, packed: &[u8]) -> Result<(), shut_out::Error> {
        let worker_ids = shut_out::unpack(packed).inspect_err(|error| {
            error!(%error, "the master's list of those that are shut out cannot be read");
        })?;
        if let Some(revoked) = self.membership.security().revoked() {
            revoked.set(worker_ids);
        }
        Ok(())
    }
}

/// What a master's hold keeps alive; dropped with its stream.
pub(crate) struct Held {
    guard: Option<LeaseGuard>, // Some until dropped.
    shared: Arc<Shared>,
    tenant: Arc<Tenant>,
    master: String,
}

impl Held {
    /// A hold with this lease, for which nothing is kept yet.
    pub(crate) fn new(shared: Arc<Shared>, guard: LeaseGuard, master: String) -> Self {
        let tenant = Arc::new(Tenant::new(&shared.config.name, shared.ledger.clone()));
        shared.tenants().insert(guard.token().to_owned(), tenant.clone());
        info!(target: NOTES, %master, "held");
        Self { guard: Some(guard), shared, tenant, master }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let computed_tokens = self.tenant.runtime.computed_tokens();
        info!(target: NOTES, master = %self.master, computed_tokens, "released");
        let (shared, tenant, guard) = (self.shared.clone(), self.tenant.clone(), self.guard.take());
        if let Some(guard) = &guard {
            guard.end(); // A load under way stops at the next blob.
        }
        tenant.runtime.stop();
        // The next hold may only come once pushes have ended and the stage is gone.
        let work = tenant.work.clone();
        let free = move || {
            tenant.put_away();
            if let Some(guard) = &guard {
                shared.tenants().remove(guard.token());
            }
            drop(guard);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(handle) => drop(handle.spawn(async move {
                let work = work.write_owned().await;
                // Joins the stage's thread: not on a thread that moves bytes.
                let freeing = tokio::task::spawn_blocking(move || {
                    let _work = work;
                    free();
                });
                freeing.await.ok();
            })),
            Err(_) => free(),
        }
    }
}
