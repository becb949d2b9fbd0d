//! What a master hears from its door.

use tokio::sync::OwnedRwLockReadGuard;

/// What happened at a master's door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker joined.
    Joined {
        /// Its id.
        worker_id: String,
        /// What it calls itself.
        name: String,
        /// Where it listens (HOST:PORT, or [`lines::address`](crate::lines::address)).
        address: String,
    },
    /// A member said where it listens.
    Hello {
        /// Its id.
        worker_id: String,
        /// Where (HOST:PORT, or [`lines::address`](crate::lines::address)).
        address: String,
    },
    /// A member opened a line.
    Line {
        /// Its id.
        worker_id: String,
    },
}

/// An event, in the hands of whoever hears of it.
#[derive(Debug)]
pub struct Visit {
    /// What happened.
    pub event: Event,
    /// Until this is dropped, [`Authority::has_told`](crate::Authority::has_told) waits.
    pub(super) _telling: Option<OwnedRwLockReadGuard<()>>,
}
