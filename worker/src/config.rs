//! What a worker was told to be, checked.
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use cake_checkpoint::KvDtype;
use cake_checkpoint::units::format_bytes;
use cake_engine::{DeviceKind, DeviceMemory, Weights};
use cake_identity::JoinToken;
use cake_proto::wire;

use crate::reserve::Reserve;
use cake_stage::{OVERHEAD_BYTES, ResidentCosts};

/// A worker's settings. Built by [`Config::checked`], so a value of this type is usable.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on, if any; port 0 lets the system choose.
    pub listen: Option<SocketAddr>,
    /// What it computes with, at least one; what it would rather be used for comes first.
    pub devices: Vec<DeviceOffer>,
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

/// So much of a name that is not known is repeated to whoever said it (characters).
const MOST_SHOWN: usize = 32;

/// A device, and what a worker offers of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOffer {
    /// What computes.
    pub device: DeviceKind,
    /// Bytes offered for weights, KV cache, scratch and the process together.
    pub budget_bytes: u64,
}

impl DeviceOffer {
    /// What masters are told of it.
    pub(crate) fn describe(&self) -> wire::Device {
        let Self { device, budget_bytes } = *self;
        wire::Device {
            name: device.name().to_owned(),
            budget_bytes,
            resident_permille: ResidentCosts::of(device).names(),
            arithmetic: cake_engine::arithmetic_of(device).unwrap_or_default().to_owned(),
            kv_dtypes: KvDtype::ALL.iter().map(ToString::to_string).collect(),
        }
    }
}

/// What is offered of each of these devices, each with the memory that it computes in: so many bytes as `asked`, or those
/// of `free`, what the system has. Where nobody tells how much of a device's own memory is free, nothing of it is
/// offered unasked: the names of such devices.
///
/// # Errors
/// [`Error::DeviceMemory`] if nothing is offered at all.
pub(crate) fn offers(
    devices: impl IntoIterator<Item = (DeviceKind, DeviceMemory)>,
    asked: Option<u64>,
    free: u64,
) -> Result<(Vec<DeviceOffer>, Vec<&'static str>), Error> {
    let (mut offers, mut unknown) = (Vec::new(), Vec::new());
    for (device, memory) in devices {
        match (asked, memory) {
            (None, DeviceMemory::Own) => unknown.push(device.name()),
            (None, DeviceMemory::System) => offers.push(DeviceOffer { device, budget_bytes: free }),
            (Some(budget_bytes), _) => offers.push(DeviceOffer { device, budget_bytes }),
        }
    }
    match offers.is_empty() {
        true => Err(Error::DeviceMemory { devices: unknown }),
        false => Ok((offers, unknown)),
    }
}

/// What is offered of the device that masters call `name`.
///
/// # Errors
/// [`NotOffered`] if nothing is.
pub(crate) fn offered(name: &str, offers: &[DeviceOffer]) -> Result<DeviceOffer, NotOffered> {
    let found = offers.iter().copied().find(|offer| offer.device.name() == name);
    found.ok_or_else(|| NotOffered {
        name: name.chars().take(MOST_SHOWN).collect(),
        offered: offers.iter().map(|offer| offer.device.name()).collect(),
    })
}

/// A device that is not offered.
#[derive(Debug, thiserror::Error)]
#[error("device is {name:?}, expected one that this worker offers: {}", offered.join(", "))]
pub struct NotOffered {
    /// As asked for, its beginning.
    name: String,
    /// What there is.
    offered: Vec<&'static str>,
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
    /// Devices of which nobody tells how much memory they have free.
    #[error(
        "nothing tells how much memory of {} is free: say with --memory how much to offer",
        devices.join(", ")
    )]
    DeviceMemory {
        /// Their names.
        devices: Vec<&'static str>,
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
        devices: Vec<DeviceOffer>,
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
        let least = devices.iter().map(|offer| offer.budget_bytes).min().unwrap_or(0);
        if least <= OVERHEAD_BYTES {
            return Err(Error::Budget { budget: least });
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
            devices,
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
    use std::collections::HashSet;

    use cake_proto::limits;

    use super::*;

    fn check(listen: &str, budget: u64, name: &str, insecure: bool) -> Result<Config, Error> {
        let store = PathBuf::from("store");
        let devices = vec![DeviceOffer { device: DeviceKind::Cpu, budget_bytes: budget }];
        Config::checked(listen, devices, store, None, name.to_owned(), 1, insecure)
    }

    #[test]
    fn a_devices_own_memory_is_offered_when_somebody_says_how_much() {
        // As a GPU would be: this build may have none.
        let gpu = (DeviceKind::Candle, DeviceMemory::Own);
        let cpu = (DeviceKind::Cpu, DeviceMemory::System);
        let offer = |device, budget_bytes| DeviceOffer { device, budget_bytes };
        let (offered, unknown) = offers([cpu, gpu], None, 7).expect("the processor's");
        assert_eq!((offered, unknown), (vec![offer(DeviceKind::Cpu, 7)], vec!["candle"]));
        let (offered, unknown) = offers([cpu, gpu], Some(9), 7).expect("both");
        let both = vec![offer(DeviceKind::Cpu, 9), offer(DeviceKind::Candle, 9)];
        assert_eq!((offered, unknown), (both, vec![]));
        let error = offers([gpu], None, 7).expect_err("nobody knows").to_string();
        assert!(error.contains("memory of candle") && error.contains("--memory"), "{error}");
    }

    #[test]
    fn every_device_of_this_build_describes_itself() {
        let mut told = HashSet::new();
        for (name, device) in DeviceKind::ALL {
            let said = DeviceOffer { device: *device, budget_bytes: 7 }.describe();
            assert_eq!((&*said.name, said.budget_bytes), (*name, 7));
            assert!(said.resident_permille.contains_key("BF16"), "{said:?}");
            assert_eq!(said.kv_dtypes, ["f32", "f16", "q8"]);
            assert!(told.insert(said.arithmetic), "{name} has bits of its own");
        }
        assert!(told.len() <= limits::DEVICES);
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
