//! What connections of clients may take.

use std::time::Duration;

use super::descriptors;

/// Connections below which the person is told that there are few.
const FEW: usize = 128;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of them at once.
    pub connections: usize,
    /// Time until a client that connected has asked, and until a head that has begun is whole.
    pub head: Duration,
    /// Time between a connection's requests.
    pub idle: Duration,
    /// Time in which a client takes nothing of its answer.
    pub unread: Duration,
}

impl Bounds {
    /// What this machine has room for; raises the limit of open files to what it may be.
    pub fn of_this_machine() -> Self {
        Self {
            connections: descriptors::connections(cake_platform::raise_open_files()),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(75), // As long as common proxies keep one.
            unread: Duration::from_secs(30),
        }
    }

    /// What a person should know of it, if anything.
    pub fn remark(&self) -> Option<String> {
        let Self { connections, .. } = self;
        (*connections < FEW).then(|| {
            format!(
                "no more than {connections} connections of clients at once: the limit of open files (ulimit -n) leaves no room for more"
            )
        })
    }
}
