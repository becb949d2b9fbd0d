//! Which workers a command is about, and where they are now.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cake_identity::{WorkerEntry, lines};

use cake_stage::Ledger;

use super::expected::ExpectedWorker;
use super::{Error, Member, Missing, hold_all};
use crate::membership::Membership;

/// Who is held, and who is not.
#[derive(Debug, Default)]
pub struct Held {
    /// Workers held.
    pub members: Vec<Member>,
    /// Members that joined and could not be held.
    pub missing: Vec<Missing>,
}

/// A memory that models share: the id of its worker, [`LOCAL`](super::LOCAL) for the master's, and its name there.
pub type Memory = (String, &'static str);

/// Workers at the addresses that a person gave, or else those that joined.
#[derive(Clone, Debug, Default)]
pub struct Whereabouts {
    /// How they are reached, and who joined.
    pub membership: Membership,
    /// The addresses given.
    typed: Vec<String>,
    alone: bool,
    /// Whether those will do that are there.
    some_suffice: bool,
    /// What models that are loaded take of them, and of the master.
    ledger: Arc<Ledger<Memory>>,
}

impl Whereabouts {
    /// `typed` are the addresses given; with `alone` not even those that joined are meant.
    pub fn new(membership: Membership, typed: Vec<String>, alone: bool) -> Self {
        Self { membership, typed, alone, some_suffice: false, ledger: Arc::default() }
    }

    /// The same, where those at the addresses given that are not there are told of, and do without.
    pub fn some_suffice(&self) -> Self {
        Self { some_suffice: true, ..self.clone() }
    }

    /// What models that are loaded take of them, and of the master.
    pub fn ledger(&self) -> Arc<Ledger<Memory>> {
        self.ledger.clone()
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
    pub fn expected(&self) -> Vec<ExpectedWorker> {
        if !self.is_of_members() {
            let expected = |address| ExpectedWorker { address, worker_id: None };
            return self.addresses().into_iter().map(expected).collect();
        }
        let members = self.membership.members().into_iter();
        let expected = |WorkerEntry { address, worker_id, .. }| ExpectedWorker {
            address,
            worker_id: Some(worker_id),
        };
        members.map(expected).collect()
    }

    /// Whether there are members that are reached over connections that they open themselves.
    pub fn needs_lines(&self) -> bool {
        self.is_of_members()
            && self.addresses().iter().any(|address| lines::worker_at(address).is_some())
    }

    /// Whether a person asked for no workers at all.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Holds them for the master called `master`. All that were named have to be there, unless some suffice; of those that
    /// joined, the ones that are, and the others are told with why they are not.
    ///
    /// # Errors
    /// As [`hold_all`].
    pub async fn hold(&self, master: &str) -> Result<Held, Error> {
        if !self.is_of_members() && self.some_suffice {
            return Ok(self.hold_some(master).await);
        }
        if !self.is_of_members() {
            let members = hold_all(&self.membership, &self.addresses(), master).await?;
            return Ok(Held { members, missing: Vec::new() });
        }
        let entries = self.membership.members();
        let mut seen = HashSet::new();
        let addresses: Vec<&String> = entries.iter().map(|entry| &entry.address).collect();
        // Of two that are said to be in one place, one can be there.
        let distinct = addresses.into_iter().filter(|address| seen.insert(*address));
        let holds = distinct.map(|address| async move {
            (address, Member::hold(&self.membership, address, master).await)
        });
        let held = futures_util::future::join_all(holds).await;
        let (mut members, mut refused) = (Vec::<Member>::new(), HashMap::new());
        for (address, held) in held {
            match held {
                // One may have moved to where another one was.
                Ok(member) if members.iter().any(|known| is_same(known, &member)) => {}
                Ok(member) => members.push(member),
                Err(error) => drop(refused.insert(address.clone(), error)),
            }
        }
        let offers = members
            .iter()
            .map(|member| (member.offer.worker_id.clone(), Some(member.offer.budget_bytes())));
        self.membership.seen(offers.collect()).await;
        let missing = self.missing(&entries, &members, refused).await;
        super::make_names_unique(&mut members);
        Ok(Held { members, missing })
    }

    /// Those at the addresses given that are there; the others are called by these.
    async fn hold_some(&self, master: &str) -> Held {
        let addresses = self.addresses();
        let holds = addresses.iter().map(|address| Member::hold(&self.membership, address, master));
        let mut held = Held::default();
        for (hold, address) in
            futures_util::future::join_all(holds).await.into_iter().zip(&addresses)
        {
            match hold {
                Ok(member) if held.members.iter().any(|known| is_same(known, &member)) => {}
                Ok(member) => held.members.push(member),
                Err(why) => {
                    let (name, address) = (address.clone(), address.clone());
                    held.missing.push(Missing { name, address, last_seen: None, why });
                }
            }
        }
        super::make_names_unique(&mut held.members);
        held
    }

    /// Those of `entries` that are not among `members`, each with why it could not be held.
    async fn missing(
        &self,
        entries: &[WorkerEntry],
        members: &[Member],
        mut refused: HashMap<String, Error>,
    ) -> Vec<Missing> {
        let is_held = |entry: &&WorkerEntry| {
            members.iter().any(|member| member.offer.worker_id == entry.worker_id)
        };
        let away: Vec<&WorkerEntry> = entries.iter().filter(|entry| !is_held(entry)).collect();
        if away.is_empty() {
            return Vec::new();
        }
        let sightings = self.membership.sightings().await;
        let missing = away.into_iter().map(|entry| {
            let WorkerEntry { name, address, worker_id, .. } = entry.clone();
            // Somebody else is where it was last.
            let other = || Error::Elsewhere { address: address.clone() };
            let why = refused.remove(&address).unwrap_or_else(other);
            let last_seen = sightings.get(&worker_id).map(|sighting| sighting.ago());
            Missing { name, address, last_seen, why }
        });
        missing.collect()
    }
}

/// Whether both are one process of a worker.
fn is_same(one: &Member, other: &Member) -> bool {
    one.offer.instance == other.offer.instance
}
