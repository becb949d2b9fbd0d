//! What can go wrong.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why an identity cannot be made, kept or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of an authority or an identity cannot be read or written.
    #[error("cannot keep {what} in {path}: {source}")]
    File {
        /// What is in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Such a file has something else in it.
    #[error("{path} is not {what}: {reason}")]
    Damaged {
        /// What was expected.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// There is an authority already.
    #[error(
        "{path} is there: this master has an authority already, and a new one would lock out its workers"
    )]
    Exists {
        /// Its file.
        path: PathBuf,
    },
    /// A certificate or a key cannot be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A certificate, key or setting that the TLS library does not take.
    #[error("cannot use a certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// What somebody pasted is no join token.
    #[error("this is no join token: {reason}")]
    Token {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The master cannot be reached.
    #[error("cannot reach the master at {address}: {source}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody says where the master is, and it is not found.
    #[error(
        "no master of the cluster that this token is for is found on this network: say where it is with \
         --master HOST:PORT"
    )]
    NotFound,
    /// Nobody says where the master is, and a worker that only its own device can reach looks for none.
    #[error(
        "this worker does not look for its master on the network, since it listens on {listen}, where nobody but \
         this device finds it: start it with --listen 0.0.0.0:{}, or with --no-listen, or say where the master \
         is with --master HOST:PORT",
        listen.port()
    )]
    OnLoopback {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// Nobody says where the master is, and the worker was told not to look.
    #[error(
        "with --no-discovery this worker does not look for its master: say where it is with --master HOST:PORT"
    )]
    NotLooked,
    /// The master at this address said no.
    #[error("the master at {address} refused: {reason}")]
    Refused {
        /// Where.
        address: String,
        /// In its words.
        reason: String,
    },
    /// An answer that breaks the protocol.
    #[error("the master at {address} answered with something else than {expected}")]
    Answer {
        /// Where.
        address: String,
        /// What was expected.
        expected: &'static str,
    },
}

impl Error {
    /// Where a master said that whoever asked is no member of its cluster, or not any more, if that is why this
    /// failed: nobody else can say it, since it is said after the handshake.
    pub fn no_member_at(&self) -> Option<&str> {
        use rustls::{AlertDescription as Alert, Error::AlertReceived};
        match self {
            Self::Refused { address, .. } => Some(address),
            Self::Unreachable { address, source } => {
                let alert = source.get_ref().and_then(|inner| inner.downcast_ref());
                let out = [Alert::CertificateRevoked, Alert::CertificateExpired, Alert::UnknownCA];
                matches!(alert, Some(AlertReceived(alert)) if out.contains(alert))
                    .then_some(address.as_str())
            }
            _ => None,
        }
    }
}

/// Why a peer is not let in.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It opened a connection and said nothing.
    #[error("said nothing in time")]
    Silent,
    /// It speaks in plain text to one who does not.
    #[error("speaks in plain text; this side takes encrypted connections only")]
    PlainText,
    /// It showed no certificate.
    #[error("has no certificate: it is no member of this cluster")]
    NoCertificate,
    /// It showed one of another authority.
    #[error("has a certificate of another cluster")]
    Foreign,
    /// It showed one that is shut out.
    #[error("is a worker that was revoked")]
    Revoked,
    /// It showed one that has ended, by the master's clock.
    #[error("has a certificate that has expired: let it join again")]
    Expired,
    /// It knows another authority than ours.
    #[error("is a member of another cluster")]
    Unknown,
    /// The handshake failed in another way.
    #[error("did not complete the handshake: {0}")]
    Handshake(std::io::Error),
    /// A member that is not who was expected here.
    #[error("is {found}, expected {expected}")]
    Other {
        /// What its certificate says.
        found: String,
        /// Who was to be at that end.
        expected: String,
    },
}

impl Refusal {
    /// Of a handshake that failed: what the TLS library said, in words of ours where it is common.
    pub(crate) fn of_handshake(error: std::io::Error) -> Self {
        use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};
        let said = error.get_ref().and_then(|inner| inner.downcast_ref());
        match said {
            Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => Self::PlainText,
            Some(Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(Error::InvalidCertificate(reason)) => match reason {
                CertificateError::UnknownIssuer => Self::Foreign,
                CertificateError::Revoked => Self::Revoked,
                CertificateError::Expired => Self::Expired,
                _ => Self::Handshake(error),
            },
            // What the other side says of our own certificate.
            Some(Error::AlertReceived(AlertDescription::UnknownCA)) => Self::Unknown,
            _ => Self::Handshake(error),
        }
    }

    /// Logs it, once for each address and reason.
    pub(crate) fn log(&self, from: SocketAddr, seen: &mut std::collections::HashSet<String>) {
        /// So many are remembered; then it begins anew.
        const REMEMBERED: usize = 1024;
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        if seen.insert(format!("{} {self}", from.ip())) {
            tracing::warn!(from = %from.ip(), "refused a connection: it {self}");
        }
    }
}
