//! One master at a time: who holds this worker, and the token that proves it.
//!
//! A lease lives exactly as long as the stream that granted it, so a master that is killed frees
//! its workers at once and nobody waits for a clock.
use std::sync::{Arc, Mutex, MutexGuard};

use cake_identity::random_token;
use cake_proto::client::LEASE_KEY;
use tonic::metadata::MetadataMap;

/// Who holds the worker. A handle: clones share one book.
#[derive(Clone, Debug, Default)]
pub struct LeaseBook {
    current: Arc<Mutex<Option<Lease>>>,
}

#[derive(Clone, Debug)]
struct Lease {
    token: String,
    master: String,
    ending: bool, // The master has gone; what it had here is being put away.
}

/// A call came from somebody who does not hold the worker.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Another master holds it.
    #[error("held by master {holder:?}; one master at a time")]
    Held {
        /// Name of that master.
        holder: String,
    },
    /// The last master has gone, its work here has not quite ended.
    #[error("still putting away what master {holder:?} left")]
    Ending {
        /// Name of that master.
        holder: String,
    },
    /// Nobody holds it, or the caller's lease has ended.
    #[error("the caller holds no lease on this worker")]
    NoLease,
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Ending { .. } => Self::aborted(message), // Worth another try.
            Error::Held { .. } | Error::NoLease => Self::failed_precondition(message),
        }
    }
}

impl LeaseBook {
    /// Grants the lease to `master` if nobody has it; it ends when the guard is dropped.
    ///
    /// # Errors
    /// [`Error::Held`] with the holder's name, or [`Error::Ending`].
    pub fn acquire(&self, master: &str) -> Result<LeaseGuard, Error> {
        let mut current = self.lock();
        if let Some(lease) = &*current {
            let holder = lease.master.clone();
            return Err(if lease.ending {
                Error::Ending { holder }
            } else {
                Error::Held { holder }
            });
        }
        let token = random_token();
        *current = Some(Lease { token: token.clone(), master: master.to_owned(), ending: false });
        Ok(LeaseGuard { book: self.clone(), token })
    }

    /// Name of the master that holds the worker.
    pub fn holder(&self) -> Option<String> {
        self.lock().as_ref().map(|lease| lease.master.clone())
    }

    /// Lets a call through if its metadata carry the current lease.
    ///
    /// # Errors
    /// [`Error::Held`] or [`Error::NoLease`].
    pub fn check(&self, metadata: &MetadataMap) -> Result<(), Error> {
        let given = metadata.get(LEASE_KEY).and_then(|value| value.to_str().ok());
        match &*self.lock() {
            None => Err(Error::NoLease),
            Some(lease) if lease.ending => Err(Error::NoLease),
            Some(lease) if given == Some(lease.token.as_str()) => Ok(()),
            Some(lease) => Err(Error::Held { holder: lease.master.clone() }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lease>> {
        // Every critical section is a plain assignment: a poisoned lock still holds a whole value.
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Ends its lease when dropped.
#[derive(Debug)]
pub struct LeaseGuard {
    book: LeaseBook,
    token: String,
}

impl LeaseGuard {
    /// The master has gone: its calls count no more, but nobody else comes in before the drop.
    pub fn end(&self) {
        if let Some(lease) = self.book.lock().as_mut().filter(|lease| lease.token == self.token) {
            lease.ending = true;
        }
    }

    /// The token that the holder's calls carry.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let mut current = self.book.lock();
        if current.as_ref().is_some_and(|lease| lease.token == self.token) {
            *current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_master_is_refused_with_the_holders_name_until_the_first_leaves() {
        let book = LeaseBook::default();
        let first = book.acquire("desk").expect("free");
        let refused = book.acquire("laptop").expect_err("taken");
        assert_eq!(refused, Error::Held { holder: "desk".into() });
        drop(first);
        let second = book.acquire("laptop").expect("free again");
        let mut metadata = MetadataMap::new();
        assert_eq!(book.check(&metadata), Err(Error::Held { holder: "laptop".into() }));
        metadata.insert(LEASE_KEY, second.token().parse().expect("ascii"));
        assert_eq!(book.check(&metadata), Ok(()));
        second.end();
        assert_eq!(book.check(&metadata), Err(Error::NoLease));
        let early = book.acquire("desk").expect_err("not put away yet");
        assert_eq!(early, Error::Ending { holder: "laptop".into() });
        drop(second);
        assert_eq!(book.check(&metadata), Err(Error::NoLease));
        book.acquire("desk").expect("free");
    }
}
