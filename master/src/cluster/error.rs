//! Why workers cannot be used; members that joined and cannot be used now, and what a person can do about that.
use std::fmt;
use std::time::Duration;

use cake_checkpoint::units::format_bytes;
use cake_identity::lines;
use cake_proto::said::sentence;
use cake_proto::{ConnectError, PROTOCOL, VERSION, limits};
use tonic::{Code, Status};

use super::offer::OfferError;

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
    /// What it says of itself makes no sense.
    #[error("worker {name:?} cannot be used: {source}")]
    Offer {
        /// Its name or address.
        name: String,
        /// What is wrong with it.
        source: OfferError,
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
    /// Held by this master for other models, and it takes no more.
    #[error("worker {name:?} at {address} takes no more models of this master: it is {reason}")]
    Full {
        /// Its name.
        name: String,
        /// Where.
        address: String,
        /// Who holds it, in the worker's words.
        reason: String,
    },
    /// Stages of other models take the room of its layers.
    #[error("worker {name:?} has no room for its layers now: {reason}")]
    Crowded {
        /// Its name.
        name: String,
        /// What it answered.
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
    /// What the model is takes more than workers read.
    #[error(
        "no worker can be told what this model is: its {layers} layers take {} to describe, of at most {}",
        format_bytes(*bytes as u64), format_bytes(limits::MODEL_BYTES as u64)
    )]
    ModelTooLong {
        /// How many layers it has.
        layers: usize,
        /// How long its specification is.
        bytes: usize,
    },
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

/// A member that cannot be used now.
#[derive(Debug)]
pub struct Missing {
    /// What it is called.
    pub name: String,
    /// Where it was looked for (HOST:PORT, or [`lines::address`]).
    pub address: String,
    /// How long ago it was last heard of, if that is known.
    pub last_seen: Option<Duration>,
    /// Why it is not held.
    pub why: Error,
}

impl Missing {
    /// Whether it is there, at work for another master.
    pub fn is_busy(&self) -> bool {
        matches!(self.why, Error::Held { .. })
    }

    /// Whether it is there, and other models of this master are in the way.
    pub fn is_full(&self) -> bool {
        matches!(self.why, Error::Full { .. })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        let line = lines::worker_at(&self.address).is_some();
        if !line {
            write!(f, " at {}", self.address)?;
        }
        match &self.why {
            // The worker adds a rule that says nothing of this one.
            Error::Held { reason, .. } | Error::Full { reason, .. } => {
                write!(f, " is {}", reason.split(';').next().unwrap_or(reason))?;
            }
            Error::Connect(_) if line => write!(f, " has opened no connection to this master")?,
            why => write!(f, ": {why}")?,
        }
        match self.last_seen {
            Some(_) if self.is_busy() || self.is_full() => Ok(()),
            Some(ago) => write!(f, "; last seen {}", ago_text(ago)),
            None => Ok(()),
        }
    }
}

/// What to do about them, for the end of a sentence.
fn remedies(missing: &[Missing]) -> String {
    let busy = missing.iter().any(Missing::is_busy);
    let full = missing.iter().any(Missing::is_full);
    let down = missing.iter().any(|one| !one.is_busy() && !one.is_full());
    let ways = [
        full.then_some("let another model make room"),
        busy.then_some("wait until that master is done, or stop it"),
        down.then_some("`cake-master doctor` says how to start who is down"),
        Some("--alone computes everything on this machine"),
    ];
    ways.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A time that has passed, for people: its largest unit is enough.
pub fn ago_text(ago: Duration) -> String {
    let seconds = ago.as_secs();
    match seconds {
        0..60 => "less than a minute ago".to_owned(),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use cake_proto::ConnectError;

    use super::*;

    fn busy() -> Missing {
        let reason = "held by master \"attic (process 7)\"; one master at a time".to_owned();
        let (name, address) = ("tablet".to_owned(), "127.0.0.1:7".to_owned());
        let why = Error::Held { name: name.clone(), address: address.clone(), reason };
        Missing { name, address, last_seen: Some(Duration::from_secs(9)), why }
    }

    fn full() -> Missing {
        let reason = "held by master \"desk (process 8)\"; one master at a time".to_owned();
        let (name, address) = ("tablet".to_owned(), "127.0.0.1:7".to_owned());
        let why = Error::Full { name: name.clone(), address: address.clone(), reason };
        Missing { name, address, last_seen: Some(Duration::from_secs(9)), why }
    }

    fn down(address: &str) -> Missing {
        let reason = "connection refused".to_owned();
        let why = Error::Connect(ConnectError::Unreachable { address: address.to_owned(), reason });
        let last_seen = Some(Duration::from_secs(200));
        Missing { name: "phone".to_owned(), address: address.to_owned(), last_seen, why }
    }

    #[test]
    fn each_says_who_holds_it_or_why_it_is_not_reached_and_since_when() {
        assert_eq!(
            busy().to_string(),
            "tablet at 127.0.0.1:7 is held by master \"attic (process 7)\""
        );
        assert_eq!(
            down("127.0.0.1:8").to_string(),
            "phone at 127.0.0.1:8: no worker answers at 127.0.0.1:8: connection refused; \
             last seen 3 min ago"
        );
        let line = lines::address("0123456789abcdef0123456789abcdef");
        assert_eq!(
            down(&line).to_string(),
            "phone has opened no connection to this master; last seen 3 min ago"
        );
    }

    #[test]
    fn the_way_out_fits_what_is_wrong() {
        let (only_busy, only_down) = (remedies(&[busy()]), remedies(&[down("127.0.0.1:8")]));
        assert!(only_busy.contains("wait") && !only_busy.contains("doctor"), "{only_busy}");
        assert!(only_down.contains("doctor") && !only_down.contains("wait"), "{only_down}");
        let only_full = remedies(&[full()]);
        assert!(only_full.contains("make room") && !only_full.contains("wait"), "{only_full}");
        assert!(!only_full.contains("doctor"), "{only_full}");
        for all in [only_busy, only_down, only_full, remedies(&[busy(), down("127.0.0.1:8")])] {
            assert!(all.contains("--alone"), "{all}");
        }
    }

    #[test]
    fn times_are_told_by_their_largest_unit() {
        let text = |seconds| ago_text(Duration::from_secs(seconds));
        assert_eq!(text(59), "less than a minute ago");
        assert_eq!(text(60), "1 min ago");
        assert_eq!(text(3_600), "1 h ago");
        assert_eq!(text(172_800), "2 days ago");
    }
}
