//! Finding each other on a local network: DNS-SD over multicast DNS (RFC 6762, RFC 6763).
//!
//! Start at [`look_out`]: whoever takes part says where it listens, and hears where those of the other role do.
//!
//! Invariants:
//! - What is heard is a hint and no more: anybody on the network can say anything. Whoever goes where a
//!   [`Sighting`] points lets TLS prove who is there.
//! - What others say does not make this process keep more than some thousand short records for longer than a
//!   second, nor more than 50,000 names of services that are gone (each 255 bytes at most, so 13 MB): the library
//!   never forgets those, so that it is begun anew then.
//! - Without multicast there is one line in the log, and everything else works.

mod said;
mod watch;

pub use said::{Role, Sighting};
pub use watch::{About, News, look_out};
