//! One master at a time: who holds this worker, and the tokens that prove it, one for each model that it computes with here.
//!
//! A lease lives exactly as long as the stream that granted it, so a master that is killed frees
//! its workers at once and nobody waits for a clock.
use std::sync::{Arc, Mutex, MutexGuard};

use cake_identity::random_token;
use cake_proto::client::LEASE_KEY;
use cake_proto::limits;
use tonic::metadata::MetadataMap;

/// Who holds the worker. A handle: clones share one book.
#[derive(Clone, Debug, Default)]
pub struct LeaseBook {
    current: Arc<Mutex<Vec<Lease>>>, // All of one master.
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
    /// A master has as many as it may have.
    #[error("held by master {holder:?} for {} models, as many as there may be", limits::HOLDS)]
    Many {
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
            Error::Held { .. } | Error::Many { .. } | Error::NoLease => {
                Self::failed_precondition(message)
            }
        }
    }
}

impl LeaseBook {
    /// Grants a lease to `master` if nobody has one, or if it shows one that it has (`beside`); it ends when the guard is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Held`] with the holder's name, [`Error::Ending`], or [`Error::Many`].
    pub fn acquire(&self, master: &str, beside: &str) -> Result<LeaseGuard, Error> {
        let mut current = self.lock();
        // What is being put away takes memory until it is gone.
        if let Some(Lease { master, .. }) = current.iter().find(|lease| lease.ending) {
            return Err(Error::Ending { holder: master.clone() });
        }
        if let Some(Lease { master, .. }) = current.first() {
            let holder = master.clone();
            if !current.iter().any(|lease| lease.token == beside) {
                return Err(Error::Held { holder });
            }
            if current.len() >= limits::HOLDS {
                return Err(Error::Many { holder });
            }
        }
        let token = random_token();
        current.push(Lease { token: token.clone(), master: master.to_owned(), ending: false });
        Ok(LeaseGuard { book: self.clone(), token })
    }

    /// Name of the master that holds the worker.
    pub fn holder(&self) -> Option<String> {
        self.lock().first().map(|lease| lease.master.clone())
    }

    /// Lets a call through if its metadata carry a lease that has not ended; returns that.
    ///
    /// # Errors
    /// [`Error::Held`] or [`Error::NoLease`].
    pub fn check(&self, metadata: &MetadataMap) -> Result<String, Error> {
        let given = metadata.get(LEASE_KEY).and_then(|value| value.to_str().ok());
        let current = self.lock();
        let mut live = current.iter().filter(|lease| !lease.ending).peekable();
        let Some(holder) = live.peek().map(|lease| lease.master.clone()) else {
            return Err(Error::NoLease);
        };
        let theirs = live.find(|lease| given == Some(lease.token.as_str()));
        theirs.map(|lease| lease.token.clone()).ok_or(Error::Held { holder })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Lease>> {
        // Every change leaves it whole: a poisoned lock still holds a whole value.
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
        let mut current = self.book.lock();
        let own = current.iter_mut().filter(|lease| lease.token == self.token);
        own.for_each(|lease| lease.ending = true);
    }

    /// The token that the holder's calls carry.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.book.lock().retain(|lease| lease.token != self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_master_is_refused_with_the_holders_name_until_the_first_leaves() {
        let book = LeaseBook::default();
        let first = book.acquire("desk", "").expect("free");
        let refused = book.acquire("laptop", "").expect_err("taken");
        assert_eq!(refused, Error::Held { holder: "desk".into() });
        drop(first);
        let second = book.acquire("laptop", "").expect("free again");
        let mut metadata = MetadataMap::new();
        assert_eq!(book.check(&metadata), Err(Error::Held { holder: "laptop".into() }));
        metadata.insert(LEASE_KEY, second.token().parse().expect("ascii"));
        assert_eq!(book.check(&metadata).as_deref(), Ok(second.token()));
        second.end();
        assert_eq!(book.check(&metadata), Err(Error::NoLease));
        let early = book.acquire("desk", "").expect_err("not put away yet");
        assert_eq!(early, Error::Ending { holder: "laptop".into() });
        drop(second);
        assert_eq!(book.check(&metadata), Err(Error::NoLease));
        book.acquire("desk", "").expect("free");
    }

    #[test]
    fn a_master_has_another_lease_for_one_that_it_shows() {
        let book = LeaseBook::default();
        let first = book.acquire("desk", "").expect("free");
        let held = Err(Error::Held { holder: "desk".into() });
        assert_eq!(book.acquire("desk", "guessed").map(drop), held);
        let second = book.acquire("desk", first.token()).expect("it is the same master");
        assert_ne!(first.token(), second.token());
        first.end();
        let ending = Err(Error::Ending { holder: "desk".into() });
        assert_eq!(
            book.acquire("desk", second.token()).map(drop),
            ending,
            "its memory is not back"
        );
        drop(first);
        let mut metadata = MetadataMap::new();
        metadata.insert(LEASE_KEY, second.token().parse().expect("ascii"));
        assert!(book.check(&metadata).is_ok(), "the other lease lives on");
        let all: Vec<_> = (1..limits::HOLDS)
            .map(|_| book.acquire("desk", second.token()).expect("one more"))
            .collect();
        let many = Err(Error::Many { holder: "desk".into() });
        assert_eq!(book.acquire("desk", second.token()).map(drop), many);
        drop((second, all));
        assert_eq!(book.holder(), None);
    }
}
