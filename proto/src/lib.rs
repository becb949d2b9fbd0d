//! The wire between a master and its workers.
//!
//! Start with `cake/v1/worker.proto`, then [`step`] (how one step is cut into frames and put together
//! again), [`failure`] (why a stage could not do one), [`wire_format`] (how its hidden states become bytes) and
//! [`connect`] (how a connection is opened and tagged).
//!
//! Invariants:
//! - Knows only the wire: no tensor math, no checkpoint, no store.
//! - Everything a peer announces is bounded before it is allocated ([`limits`]).
//! - Every connection is made as [`cake_identity::Security`] says.
//! - Only a service's first and last lines name [`wire`] messages; past them there are plain checked
//!   types.

pub mod client;
mod error;
pub mod failure;
pub mod limits;
pub mod said;
pub mod shut_out;
pub mod step;
mod trace;
pub mod wire_format;

pub use client::{Client, ConnectError, Tag, connect};
pub use error::ProtocolError;
pub use failure::{Failure, FailureKind};
pub use step::{Assembler, Incoming, StateSlots, Step, StepItem};
pub use trace::TraceContext;
pub use wire_format::WireFormat;

/// Version of the wire protocol. Raised whenever an old peer could misread a new one, in what a
/// message carries (a manifest, bytes of tensors) as well as in the messages.
pub const PROTOCOL: u32 = 6;

/// Version of this build, sent for people to read.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Messages and services as generated from `cake/v1/worker.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod wire {
    tonic::include_proto!("cake.v1");
}
