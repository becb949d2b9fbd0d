//! Whom a command expects, and where.

/// A worker that is expected at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedWorker {
    /// Its address (HOST:PORT, or [`cake_identity::lines::address`]).
    pub address: String,
    /// Its id, if it has joined.
    pub worker_id: Option<String>,
}
