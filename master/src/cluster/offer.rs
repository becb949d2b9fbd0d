//! What a worker says of itself, made fit for numbers and terminals.
use std::collections::{HashMap, HashSet};

use cake_checkpoint::Digest;
use cake_proto::wire;
use cake_stage::ResidentCosts;
use serde::{Serialize, Serializer};

/// What a worker says of itself, checked.
#[derive(Clone, Debug, Serialize)]
pub struct Offer {
    /// The id that stays with its store.
    pub worker_id: String,
    /// Name for people.
    pub name: String,
    /// Version of its build.
    pub version: String,
    /// Bytes for weights, KV cache, scratch and process together.
    pub budget_bytes: u64,
    /// Bytes of the process alone.
    pub overhead_bytes: u64,
    /// Threads it computes with.
    pub threads: usize,
    /// Free bytes where its store is.
    pub free_disk_bytes: u64,
    /// Most bytes its store keeps, if there is a limit.
    pub store_limit_bytes: Option<u64>,
    /// Bytes in its store.
    pub stored_bytes: u64,
    /// Half-pushed blobs in its store, and the bytes that are there of each.
    #[serde(skip)]
    pub partial: HashMap<Digest, u64>,
    /// Its clock, in milliseconds since 1970.
    pub clock_ms: u64,
    /// Master that holds it, if any.
    pub held_by: Option<String>,
    /// What its memory holds of each encoding that it runs.
    #[serde(rename = "resident_permille", serialize_with = "by_name")]
    pub resident: ResidentCosts,
    /// Blobs in its store.
    #[serde(skip)]
    pub blobs: HashSet<Digest>,
    /// Differs each time its process starts.
    #[serde(skip)]
    pub instance: String,
    /// Operating system and architecture.
    pub system: String,
    /// Its arithmetic, as [`cake_engine::arithmetic`] names it; an older version does not say.
    pub arithmetic: Option<String>,
}

impl From<wire::Description> for Offer {
    fn from(said: wire::Description) -> Self {
        Self {
            worker_id: said.worker_id,
            name: plain(said.name, "-_."),
            version: plain(said.version, "-.+"),
            budget_bytes: said.budget_bytes,
            overhead_bytes: said.overhead_bytes,
            threads: said.threads as usize,
            free_disk_bytes: said.free_disk_bytes,
            store_limit_bytes: Some(said.store_limit_bytes).filter(|limit| *limit > 0),
            stored_bytes: said.stored_bytes,
            partial: said
                .partial
                .iter()
                .filter_map(|(name, bytes)| Some((name.parse().ok()?, *bytes)))
                .collect(),
            clock_ms: said.clock_ms,
            held_by: Some(plain(said.held_by, "-_. ()")).filter(|holder| !holder.is_empty()),
            resident: ResidentCosts::from_names(&said.resident_permille),
            blobs: said.blobs.iter().filter_map(|name| name.parse().ok()).collect(),
            instance: said.instance,
            system: plain(said.system, "-_. "),
            arithmetic: Some(plain(said.arithmetic, "-")).filter(|name| !name.is_empty()),
        }
    }
}

/// What of a word of a worker's may go to a terminal: letters, digits and `others`.
pub(super) fn plain(mut word: String, others: &str) -> String {
    word.retain(|c| c.is_ascii_alphanumeric() || others.contains(c));
    word.truncate(63);
    word
}

fn by_name<S: Serializer>(costs: &ResidentCosts, to: S) -> Result<S::Ok, S::Error> {
    costs.names().serialize(to)
}
