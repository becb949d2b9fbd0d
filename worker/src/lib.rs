//! A worker: keeps the blobs it was given, runs its layers and hands hidden states to the next stage.
//!
//! Start with [`server`] (what runs), then [`service`] (the RPCs, thin), [`store`] (blobs on disk),
//! [`membership`] (whose worker it is; `announce` tells its master where it is, `lines` are for one that
//! cannot connect to it), [`runtime`] (the loaded stage on threads of its own) and [`routes`] (where its output goes).
//!
//! Invariants:
//! - A library first: an app on a phone embeds [`server::Worker`]; the binary only parses arguments.
//! - Never depends on the master.
//! - Writes nothing outside its store, and holds nothing that its plan did not give it.
//! - Arithmetic runs on the stage's own threads, never on the runtime that moves the bytes.
//! - Bytes from a peer never panic the process, and sizes are bounded before they are allocated.

mod announce;
pub mod cli;
mod condition;
pub mod config;
mod feed;
pub mod lease;
mod lines;
pub mod load;
pub mod membership;
mod progress;
pub mod push;
pub mod reserve;
pub mod routes;
pub mod runtime;
pub mod server;
pub mod service;
mod shared;
pub mod store;
mod tenant;

/// Target of the few lines that a worker says without being asked for more: who holds it, and what it does for them.
pub(crate) const NOTES: &str = "cake_worker::notes";

/// Port that workers listen on unless told otherwise.
pub const DEFAULT_PORT: u16 = 7117;
