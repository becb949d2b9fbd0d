//! Why workers cannot be used.
use cake_proto::said::sentence;
use cake_proto::{ConnectError, PROTOCOL, VERSION};
use tonic::{Code, Status};

use super::missing::{Missing, remedies};

/// Why a worker cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It answers, but not as a worker of this protocol.
    #[error(
        "worker at {address} is cake {version}, which speaks protocol {protocol}; \
             this master is cake {VERSION} and speaks {PROTOCOL}: install the same version on both"
    )]
    Protocol {
        /// Where.
        address: String,
        /// Its version.
        version: String,
        /// Its protocol.
        protocol: u32,
    },
    /// It says that it is another one than its certificate does.
    #[error("worker {certified} at {address} claims to be {claimed}")]
    Impostor {
        /// Where.
        address: String,
        /// The id in its certificate.
        certified: String,
        /// The id that it gave.
        claimed: String,
    },
    /// Somebody else is where a member was last.
    #[error("another worker is at {address} now")]
    Elsewhere {
        /// Where.
        address: String,
    },
    /// Held by another master.
    #[error("worker {name:?} at {address} is {reason}")]
    Held {
        /// Its name.
        name: String,
        /// Where.
        address: String,
        /// Who holds it, in the worker's words.
        reason: String,
    },
    /// Two addresses of one worker.
    #[error("{first} and {second} are the same worker {name:?}: give one of them")]
    SameWorker {
        /// Its name.
        name: String,
        /// An address.
        first: String,
        /// Another one.
        second: String,
    },
    /// Workers cannot be told who is shut out, so that none is used.
    #[error("no worker can be told who is shut out: {0}")]
    ShutOut(#[from] cake_proto::shut_out::Error),
    /// A call failed.
    #[error("worker {name:?} could not {action}: {reason}")]
    Call {
        /// Its name or address.
        name: String,
        /// What was asked.
        action: &'static str,
        /// What it answered.
        reason: String,
    },
    /// Several workers cannot be used; all are named at once.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<Error>),
    /// Members joined, and none of them can be used: the master does not take over their part unasked.
    #[error(
        "no member can be used, and this machine does not take all layers unasked:\n{}\n{}",
        .0.iter().map(|missing| format!("  {missing}")).collect::<Vec<_>>().join("\n"),
        remedies(.0)
    )]
    NobodyThere(Vec<Missing>),
}

impl Error {
    /// A failed call, in one sentence.
    pub fn call(name: &str, action: &'static str, status: &Status) -> Self {
        let said = sentence(status.message());
        let reason = match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => "no answer in time".to_owned(),
            Code::Unavailable => format!("the connection is lost ({said})"),
            _ => said,
        };
        Self::Call { name: name.to_owned(), action, reason }
    }

    pub(super) fn silent(name: &str, action: &'static str) -> Self {
        Self::call(name, action, &Status::deadline_exceeded(""))
    }
}
