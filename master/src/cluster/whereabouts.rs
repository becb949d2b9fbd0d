//! Which workers a command is about, and where they are now.
use std::collections::HashSet;

use cake_identity::{WorkerEntry, lines};
use tracing::warn;

use super::{Error, Member, hold_all};
use crate::membership::Membership;

/// Where a worker may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its address (HOST:PORT, or [`lines::address`]).
    pub address: String,
    /// Its id, if it has joined.
    pub worker_id: Option<String>,
}

/// Workers at the addresses that a person gave, or else those that joined.
#[derive(Clone, Debug, Default)]
pub struct Whereabouts {
    /// How they are reached, and who joined.
    pub membership: Membership,
    /// The addresses given.
    typed: Vec<String>,
    alone: bool,
}

impl Whereabouts {
    /// `typed` are the addresses given; with `alone` not even those that joined are meant.
    pub fn new(membership: Membership, typed: Vec<String>, alone: bool) -> Self {
        Self { membership, typed, alone }
    }

    /// Whether those that joined are meant, wherever they are.
    pub fn is_of_members(&self) -> bool {
        !self.alone && self.typed.is_empty()
    }

    /// Where they were last known to be.
    pub fn addresses(&self) -> Vec<String> {
        if self.alone {
            return Vec::new();
        }
        if !self.typed.is_empty() {
            return self.typed.clone();
        }
        let mut seen = HashSet::new();
        let addresses = self.membership.members().into_iter().map(|member| member.address);
        addresses.filter(|address| seen.insert(address.clone())).collect()
    }

    /// The same, with the id of who is expected there.
    pub fn places(&self) -> Vec<Place> {
        if !self.is_of_members() {
            let place = |address| Place { address, worker_id: None };
            return self.addresses().into_iter().map(place).collect();
        }
        let members = self.membership.members().into_iter();
        let place =
            |WorkerEntry { address, worker_id, .. }| Place { address, worker_id: Some(worker_id) };
        members.map(place).collect()
    }

    /// Whether there are members that are reached over connections that they open themselves.
    pub fn needs_lines(&self) -> bool {
        self.is_of_members()
            && self.addresses().iter().any(|address| lines::worker_at(address).is_some())
    }

    /// Holds them for the master called `master`. All that were named have to be there; of those that joined, the
    /// ones that are.
    ///
    /// # Errors
    /// As [`hold_all`].
    pub async fn hold(&self, master: &str) -> Result<Vec<Member>, Error> {
        let addresses = self.addresses();
        if !self.typed.is_empty() {
            return hold_all(&self.membership, &addresses, master).await;
        }
        let holds = addresses.iter().map(|address| Member::hold(&self.membership, address, master));
        let (mut there, mut seen) = (Vec::new(), HashSet::new());
        for held in futures_util::future::join_all(holds).await {
            match held {
                // One may have moved to where another one was.
                Ok(member) if !seen.insert(member.offer.instance.clone()) => {}
                Ok(member) => there.push(member),
                Err(error) => warn!(%error, "a member is not there"),
            }
        }
        super::make_names_unique(&mut there);
        Ok(there)
    }
}
