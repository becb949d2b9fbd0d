//! What a worker was told to be, checked.
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use cake_checkpoint::units::format_bytes;
use cake_engine::Weights;
use cake_identity::JoinToken;

use crate::reserve::Reserve;
use cake_stage::OVERHEAD_BYTES;

/// A worker's settings. Built by [`Config::checked`], so a value of this type is usable.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on, if any; port 0 lets the system choose.
    pub listen: Option<SocketAddr>,
    /// Bytes offered for weights, KV cache, scratch and the process together.
    pub budget_bytes: u64,
    /// Directory of the blob store.
    pub store: PathBuf,
    /// Most bytes the store may keep; `None` is bounded by the disk alone.
    pub store_limit: Option<u64>,
    /// Name for people.
    pub name: String,
    /// Threads for arithmetic.
    pub threads: usize,
    /// Where weights lie. Nothing to check: any value will do, so callers set it afterwards.
    pub weights: Weights,
    /// Whether weights are kept from being dropped or swapped. As `weights`.
    pub lock_memory: bool,
    /// Where the master is said to be (HOST:PORT). As `weights`.
    pub master: Option<String>,
    /// What lets this worker join a cluster that it is no member of. As `weights`.
    pub token: Option<JoinToken>,
    /// Whether to look for the master on the network, and to be found, unless it listens on loopback. As `weights`.
    pub discovery: bool,
    /// What of the device is kept back. As `weights`.
    pub reserve: Reserve,
    /// Whether to speak in plain text, with anybody. As `weights`.
    pub insecure: bool,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address does not resolve.
    #[error("cannot listen on {address:?}: expected HOST:PORT, such as 127.0.0.1:7117")]
    Address {
        /// As given.
        address: String,
    },
    /// Plain text on a network, unasked.
    #[error(
        "{address} is reachable from the network, and this worker has not joined a cluster, so that \
         anybody there could use it: join with --token (see `cake-master token`), listen on \
         127.0.0.1, or accept that with --insecure"
    )]
    NotLoopback {
        /// As resolved.
        address: SocketAddr,
    },
    /// A master whose cluster this worker is no member of.
    #[error(
        "this worker has not joined a cluster: --master {master} takes --token, too, with what \
         `cake-master token` prints"
    )]
    NoToken {
        /// As given.
        master: String,
    },
    /// Nobody could ever reach it.
    #[error(
        "a worker that does not listen is of use to a master whose cluster it has joined: join with --token \
         (see `cake-master token`)"
    )]
    NoListener,
    /// Not even the process itself fits.
    #[error("a budget of {} is too small: the worker's own process takes {}",
        format_bytes(*budget), format_bytes(OVERHEAD_BYTES))]
    Budget {
        /// As given.
        budget: u64,
    },
    /// A name that tables and messages could not show.
    #[error("{name:?} is not a usable name: expected 1 to 63 letters, digits, '-', '_' or '.'")]
    Name {
        /// As given.
        name: String,
    },
    /// Zero or absurdly many threads.
    #[error("{threads} threads: expected 1 to 1024")]
    Threads {
        /// As given.
        threads: usize,
    },
}

impl Config {
    /// Checks the settings. `exposed` allows an address that others can reach. Weights lie where
    /// that is best, and are not locked; there is no token, nothing is kept back, and what the worker is a
    /// member of counts.
    ///
    /// # Errors
    /// [`Error`], one sentence for the person who typed them.
    pub fn checked(
        listen: &str,
        budget_bytes: u64,
        store: PathBuf,
        store_limit: Option<u64>,
        name: String,
        threads: usize,
        exposed: bool,
    ) -> Result<Self, Error> {
        let listen = resolve(listen)?;
        if !listen.ip().is_loopback() && !exposed {
            return Err(Error::NotLoopback { address: listen });
        }
        if budget_bytes <= OVERHEAD_BYTES {
            return Err(Error::Budget { budget: budget_bytes });
        }
        if !(1..=1024).contains(&threads) {
            return Err(Error::Threads { threads });
        }
        let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(usable) {
            return Err(Error::Name { name });
        }
        Ok(Self {
            listen: Some(listen),
            budget_bytes,
            store,
            store_limit,
            name,
            threads,
            weights: Weights::default(),
            lock_memory: false,
            master: None,
            token: None,
            discovery: true,
            reserve: Reserve::default(),
            insecure: false,
        })
    }
}

fn resolve(address: &str) -> Result<SocketAddr, Error> {
    let resolved = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    resolved.ok_or_else(|| Error::Address { address: address.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listen: &str, budget: u64, name: &str, insecure: bool) -> Result<Config, Error> {
        let store = PathBuf::from("store");
        Config::checked(listen, budget, store, None, name.to_owned(), 1, insecure)
    }

    #[test]
    fn plain_text_on_a_network_must_be_asked_for() {
        let error = check("0.0.0.0:7117", 1 << 30, "phone", false).expect_err("refused");
        assert!(error.to_string().contains("--insecure"), "{error}");
        assert!(check("0.0.0.0:7117", 1 << 30, "phone", true).is_ok());
        assert!(check("127.0.0.1:0", 1 << 30, "phone", false).is_ok());
    }

    #[test]
    fn rejects_unusable_settings() {
        assert!(matches!(check("nowhere", 1 << 30, "phone", false), Err(Error::Address { .. })));
        assert!(matches!(check("127.0.0.1:0", 1, "phone", false), Err(Error::Budget { .. })));
        assert!(matches!(check("127.0.0.1:0", 1 << 30, "a b", false), Err(Error::Name { .. })));
    }
}
