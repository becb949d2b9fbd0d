//! Who may take part in a cluster, and how they prove it to each other.
//!
//! The master is a certificate [`Authority`]. A worker enrols once ([`join`]): its [`JoinToken`] pins the
//! authority and proves that somebody who may has asked for it. From then on both sides of every connection show a
//! certificate of that authority ([`Security`]). A worker to which nobody can connect opens [`lines`] that its master
//! calls on. Start with `security`, then [`join`].
//!
//! Invariants:
//! - A certificate's name says what its holder is, the master or the worker of an id; never where it is.
//! - Only the master's clock judges validity: a worker's may be wrong by decades.
//! - A secret is proved, never sent. Keys lie in files that only their owner can read.
//! - What an unknown peer sends is bounded before it is allocated, and so is how many of them wait.

mod authority;
mod book;
mod entry;
mod error;
pub mod files;
mod fingerprint;
#[doc(hidden)]
pub mod hostile;
pub mod join;
pub mod lines;
mod listener;
mod peer;
pub mod revoked;
mod security;
mod stream;
#[cfg(test)]
mod tests;
mod token;
mod verify;
mod whom;

pub use authority::{Authority, DEFAULT_LIFETIME};
pub use book::{Book, BookFile, TokenEntry};
pub use entry::{MOST_NAME_BYTES, WorkerEntry, is_worker_name};
pub use error::{Error, Refusal};
pub use lines::Lines;
pub use listener::{Incoming, incoming};
pub use peer::{MOST_REVOKED, Peer};
pub use revoked::Revoked;
pub use security::{Identity, Security};
pub use stream::Stream;
pub use token::JoinToken;
pub use whom::NameError;

/// 128 bits that nobody can guess, as 32 hexadecimal digits.
///
/// # Panics
/// If the system has no random numbers: nothing could be kept secret there.
pub fn random_token() -> String {
    hex(&random::<16>())
}

/// Until when a certificate is valid, in seconds since 1970; 0 if it is none.
pub fn expires_seconds(certificate: &[u8]) -> u64 {
    peer::validity(certificate).map_or(0, |(_, end)| end)
}

/// Bytes that nobody can guess.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("every system that this runs on has random numbers");
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
