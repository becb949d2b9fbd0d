//! Where a worker may be.

/// Where a worker may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its address (HOST:PORT, or [`cake_identity::lines::address`]).
    pub address: String,
    /// Its id, if it has joined.
    pub worker_id: Option<String>,
}
