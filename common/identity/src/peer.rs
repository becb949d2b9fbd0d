//! Who is at the other end of a connection.

use std::fmt;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Names that no public authority gives.
const MASTER: &str = "master.cake.internal";
const WORKERS: &str = ".worker.cake.internal";
/// Most workers that can be shut out of a cluster: each of its workers is told of all of them in one message.
pub const MOST_REVOKED: usize = 1 << 16;
/// Length of a worker's id: hexadecimal digits.
const ID_LEN: usize = 32;

/// Who a certificate says its holder is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// It showed none: the connection is in plain text.
    Unknown,
    /// It showed none and was not asked to: it wants to join.
    Stranger,
    /// The cluster's master.
    Master,
    /// The worker of this id.
    Worker(String),
}

impl Peer {
    /// Whether it may do what the master does: over plain text anybody may.
    pub fn may_command(&self) -> bool {
        matches!(self, Peer::Unknown | Peer::Master)
    }

    /// The name in its certificate, if it can have one.
    pub(crate) fn name(&self) -> Option<String> {
        match self {
            Peer::Unknown | Peer::Stranger => None,
            Peer::Master => Some(MASTER.to_owned()),
            Peer::Worker(id) => Some(format!("{id}{WORKERS}")),
        }
    }

    /// What a certificate, already verified, says.
    pub(crate) fn named_by(certificate: &[u8]) -> Option<Peer> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        let [GeneralName::DNSName(name)] = names.value.general_names[..] else { return None };
        match name.strip_suffix(WORKERS) {
            Some(id) if is_worker_id(id) => Some(Peer::Worker(id.to_owned())),
            None if name == MASTER => Some(Peer::Master),
            _ => None,
        }
    }
}

/// Whether this can be a worker's id.
pub(crate) fn is_worker_id(id: &str) -> bool {
    id.len() == ID_LEN && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// From when to when a certificate is valid, in seconds since 1970.
pub(crate) fn validity(certificate: &[u8]) -> Option<(u64, u64)> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).ok();
    Some((seconds(validity.not_before)?, seconds(validity.not_after)?))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unknown => f.write_str("somebody in plain text"),
            Peer::Stranger => f.write_str("somebody without a certificate"),
            Peer::Master => f.write_str("the master"),
            Peer::Worker(id) => write!(f, "worker {id}"),
        }
    }
}
