//! What is remembered of a worker.
use serde::{Deserialize, Serialize};

/// Longest name of a worker.
pub const MOST_NAME_BYTES: usize = 63;

/// Whether a worker may be called so: tables and messages can show it.
pub fn is_worker_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=MOST_NAME_BYTES).contains(&name.len()) && name.chars().all(is_plain)
}

/// A worker that joined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// The id that its certificate names.
    pub worker_id: String,
    /// What it calls itself, or its owner calls it.
    pub name: String,
    /// Where it was last said to listen (HOST:PORT), or [`crate::lines::address`] if its master cannot connect to it.
    pub address: String,
    /// When, in seconds since 1970 by the master's clock.
    pub joined_seconds: u64,
    /// Until when its certificate is valid, in seconds since 1970.
    pub expires_seconds: u64,
    /// Whether it is shut out.
    pub revoked: bool,
    /// Whether its owner gave it the name: what it calls itself changes nothing then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// Whether its owner wants that it has no layers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}
