//! Who is there: connections to workers, what they offer, what they can do.
//!
//! A [`Member`] is a worker that this master holds; dropping it lets the worker go.
pub mod addresses;
mod awaited;
mod calls;
pub mod conduct;
mod error;
mod expected;
pub mod found;
mod measure;
mod names;
mod offer;
mod upkeep;
mod whereabouts;
mod word;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cake_identity::{Peer, Security, lines};
use cake_proto::said::sentence;
use cake_proto::{Client, ConnectError, PROTOCOL, Tag, VERSION, connect, wire};
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};
use tracing::{info, warn};

use self::offer::plain;
use crate::membership::Membership;

pub use awaited::Awaited;
pub use calls::{ANSWER_TIMEOUT, within, within_time};
pub use error::{Error, Missing, ago_text};
pub use expected::ExpectedWorker;
pub use measure::{Measured, link, measure, sendable};
pub use names::LOCAL;
pub use offer::{Demands, Offer, OfferError, OfferedDevice};
pub use whereabouts::{Held, Memory, Whereabouts};
use word::Word;
pub use word::{Battery, Condition};

/// How long one that was there a moment ago may.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);
/// A worker may not have heard yet that its last master is gone: wait so long for that.
const LEASE_PATIENCE: Duration = Duration::from_secs(3);
/// The worker says itself that it is putting away what the last master left.
const ENDING_PATIENCE: Duration = Duration::from_secs(60);
const LEASE_RETRY: Duration = Duration::from_millis(50);

/// A worker held by this master.
#[derive(Debug)]
pub struct Member {
    /// Where the master reaches it (HOST:PORT, or [`lines::address`]).
    pub address: String,
    /// What it said of itself; its name made unique among the members.
    pub offer: Offer,
    /// Its services, calls tagged with the lease.
    pub client: Client,
    lease: String,
    membership: Membership,
    word: Arc<Word>,
    /// What it keeps in memory is not to be believed.
    distrusted: bool,
    hold: Hold,
}

/// The stream that a lease lives as long as.
#[derive(Debug)]
struct Hold {
    lease: KnownLease,
    upkeep: JoinHandle<()>,
    /// The upkeep's end takes a moment more.
    let_go: AtomicBool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.lease.forget();
        self.upkeep.abort();
    }
}

/// A lease that other models of this master may show for one beside it.
#[derive(Clone, Debug)]
struct KnownLease {
    membership: Membership,
    worker_id: String,
    token: String,
}

impl KnownLease {
    fn forget(&self) {
        self.membership.forget_lease(&self.worker_id, &self.token);
    }
}

impl Member {
    /// Connects to the worker at `address` and takes it for the master called `master`, beside whatever this process has it
    /// for already.
    ///
    /// # Errors
    /// [`Error`]: unreachable, another protocol, held by another master, or by this one for as many models as it takes.
    pub async fn hold(membership: &Membership, address: &str, master: &str) -> Result<Self, Error> {
        let (mut client, mut offer) = look(membership.security(), address).await?;
        if let Some(name) = membership.name_given(&offer.worker_id) {
            offer.name = name;
        }
        if offer.version != VERSION {
            let (theirs, worker) = (&offer.version, &offer.name);
            warn!(%worker, %theirs, ours = VERSION, "another version: answers may differ in the last digits");
        }
        let shut_out = cake_proto::shut_out::pack(&membership.shut_out())?;
        let request = || wire::HoldRequest {
            master_name: master.to_owned(),
            shut_out: shut_out.clone(),
            beside: membership.lease_of(&offer.worker_id), // It may have ended since.
        };
        let hold = take(&mut client, &offer.name, address, request).await;
        let mut hold = hold.map_err(|error| match error {
            // This process has it for other models, of which an older one takes one, and others take so many.
            Error::Held { name, address, reason }
                if !membership.lease_of(&offer.worker_id).is_empty() =>
            {
                Error::Full { name, address, reason }
            }
            error => error,
        })?;
        let granted = tokio::time::timeout(ANSWER_TIMEOUT, hold.message())
            .await
            .map_err(|_| Error::silent(&offer.name, "grant a lease"))?
            .map_err(|status| Error::call(&offer.name, "grant a lease", &status))?;
        let lease = granted.map(|event| event.lease).unwrap_or_default();
        let client = open(membership.security(), address, &offer, &lease).await?;
        let word = Arc::<Word>::default();
        let upkeep = upkeep::hold(
            hold,
            client.clone(),
            membership.clone(),
            offer.worker_id.clone(),
            word.clone(),
        );
        membership.note_lease(&offer.worker_id, &lease);
        let known = KnownLease {
            membership: membership.clone(),
            worker_id: offer.worker_id.clone(),
            token: lease.clone(),
        };
        let ended = known.clone();
        let upkeep = tokio::spawn(async move {
            upkeep.await;
            ended.forget(); // The worker does not know it any more.
        });
        let hold = Hold { lease: known, upkeep, let_go: AtomicBool::new(false) };
        let (address, membership) = (address.to_owned(), membership.clone());
        let distrusted = false;
        Ok(Self { address, offer, client, lease, membership, word, distrusted, hold })
    }

    /// The next time that it puts away what it computed with, nothing of that stays in its memory: whatever it
    /// computes with after that is verified.
    pub fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// Lets it put away what it computed with, and asks again what it offers: what it holds changes with every
    /// push. Returns whether it answered in time: one that is slow is taken to offer what it did.
    ///
    /// # Errors
    /// [`Error::Call`] if it is not there any more, or let go of this master; [`Error::Offer`].
    async fn refresh(&mut self) -> Result<bool, Error> {
        let mut client = self.client.clone();
        let forget = self.distrusted;
        let ask = async {
            client.release(wire::ReleaseRequest { forget }).await?;
            client.describe(wire::DescribeRequest {}).await
        };
        let name = self.offer.name.clone();
        let gone = || Error::call(&name, "go on", &Status::aborted("it has let go of this master"));
        let said = tokio::select! {
            biased;
            _ = &mut self.hold.upkeep => return Err(gone()),
            said = tokio::time::timeout(ALIVE_TIMEOUT, ask) => match said {
                Ok(Ok(said)) => said.into_inner(),
                Ok(Err(status)) => return Err(Error::call(&name, "say that it is there", &status)),
                Err(_) => return Ok(false),
            },
        };
        let offer = Offer::try_from(said)
            .map_err(|source| Error::Offer { name: self.offer.name.clone(), source })?;
        if offer.instance != self.offer.instance {
            return Err(gone());
        }
        self.offer = Offer { name: std::mem::take(&mut self.offer.name), ..offer };
        self.distrusted = false;
        Ok(true)
    }

    /// Whether it is still this master's.
    pub fn is_held(&self) -> bool {
        !self.hold.let_go.load(Ordering::Relaxed) && !self.hold.upkeep.is_finished()
    }

    /// Whether it was asked to stop, and waits to be let go.
    pub fn is_leaving(&self) -> bool {
        self.is_held() && self.word.is_leaving()
    }

    /// How its device is, as far as it tells.
    pub fn condition(&self) -> Condition {
        self.word.condition()
    }

    /// Whether its owner wants it to have no layers.
    pub fn is_draining(&self) -> bool {
        self.membership.is_draining(&self.offer.worker_id)
    }

    /// Ends the lease. It keeps its place among the members until it is back or a plan is made without it.
    pub fn let_go(&self) {
        self.hold.let_go.store(true, Ordering::Relaxed);
        self.hold.lease.forget();
        self.hold.upkeep.abort();
    }

    /// Where other workers can connect to it, if they can.
    pub fn address_for_others(&self) -> Option<&str> {
        lines::worker_at(&self.address).is_none().then_some(&*self.address)
    }

    /// Name for people, unique among the members.
    pub fn name(&self) -> &str {
        &self.offer.name
    }

    /// A connection of its own, so that bulk bytes never stand before steps.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub async fn connection(&self) -> Result<Client, Error> {
        let security = self.membership.security();
        Ok(open(security, &self.address, &self.offer, &self.lease).await?)
    }
}

/// A connection to the worker that made this offer.
async fn open(
    security: &Security,
    address: &str,
    offer: &Offer,
    lease: &str,
) -> Result<Client, ConnectError> {
    let expected = Peer::Worker(offer.worker_id.clone());
    Ok(connect(security, address, Some(&expected), Tag::lease(lease)).await?.0)
}

/// Asks for the lease; waits a little while one that has just ended is being freed.
async fn take(
    client: &mut Client,
    name: &str,
    address: &str,
    request: impl Fn() -> wire::HoldRequest,
) -> Result<Streaming<wire::HoldEvent>, Error> {
    let started = tokio::time::Instant::now();
    loop {
        let call = tokio::time::timeout(ANSWER_TIMEOUT, client.hold(request())).await;
        match call.unwrap_or_else(|_| Err(Status::deadline_exceeded(""))) {
            Ok(hold) => return Ok(hold.into_inner()),
            Err(status) => {
                let patience = match status.code() {
                    Code::FailedPrecondition => LEASE_PATIENCE,
                    Code::Aborted => ENDING_PATIENCE,
                    _ => return Err(Error::call(name, "be held", &status)),
                };
                if started.elapsed() > patience {
                    let (name, address) = (name.to_owned(), address.to_owned());
                    let reason = sentence(status.message());
                    return Err(Error::Held { name, address, reason });
                }
            }
        }
        tokio::time::sleep(LEASE_RETRY).await;
    }
}

/// Connects to every address and holds each worker; all that cannot be used are named at once.
///
/// # Errors
/// [`Error`], or [`Error::Several`].
pub async fn hold_all(
    membership: &Membership,
    addresses: &[String],
    master: &str,
) -> Result<Vec<Member>, Error> {
    refuse_doubles(membership.security(), addresses).await?;
    let holds = addresses.iter().map(|address| Member::hold(membership, address, master));
    let mut members = Vec::new();
    let mut errors = Vec::new();
    for result in futures_util::future::join_all(holds).await {
        match result {
            Ok(member) => members.push(member),
            Err(error) => errors.push(error),
        }
    }
    if errors.len() > 1 {
        return Err(Error::Several(errors));
    }
    if let Some(error) = errors.pop() {
        return Err(error);
    }
    make_names_unique(&mut members);
    Ok(members)
}

/// Asks all members what they offer now, and lets go of those that are not there any more. Returns the names of
/// those that are slow to answer: perhaps they cannot put away what they compute with.
pub async fn refresh(members: &mut Vec<Member>) -> Vec<String> {
    let there = futures_util::future::join_all(members.iter_mut().map(Member::refresh)).await;
    let mut there = there.into_iter();
    let mut slow = Vec::new();
    members.retain(|member| match there.next() {
        Some(Err(error)) => {
            info!(worker = member.name(), %error, "let go");
            false
        }
        Some(Ok(false)) => {
            slow.push(member.name().to_owned());
            true
        }
        _ => true,
    });
    slow
}

/// Takes those `expected` that are no members, or not held any more, and are there now. Members keep
/// their places. May be dropped at any time.
pub async fn rejoin(
    members: &mut Vec<Member>,
    membership: &Membership,
    expected: &[ExpectedWorker],
    master: &str,
) {
    let held = Member::is_held;
    // One that is held may be reached another way by now: what it has is good as long as it works.
    let is_at = |member: &Member, one: &ExpectedWorker| {
        let id = one.worker_id.as_ref();
        id == Some(&member.offer.worker_id) || member.address == one.address
    };
    let is_missing =
        |one: &&ExpectedWorker| !members.iter().any(|member| is_at(member, one) && held(member));
    let missing: Vec<&ExpectedWorker> = expected.iter().filter(is_missing).collect();
    let holds = missing.into_iter().map(|one| async move {
        let hold = Member::hold(membership, &one.address, master);
        tokio::time::timeout(ALIVE_TIMEOUT, hold).await.ok()?.ok()
    });
    let back = futures_util::future::join_all(holds).await;
    for mut member in back.into_iter().flatten() {
        // The same worker may have two addresses.
        let known = |other: &Member| other.offer.instance == member.offer.instance;
        if members.iter().any(|other| known(other) && held(other)) {
            continue;
        }
        info!(worker = member.name(), "there again");
        // It may have been lost at another address, where somebody else is now.
        let same = |other: &Member| other.offer.worker_id == member.offer.worker_id;
        let lost = members.iter().position(|other| !held(other) && same(other));
        let at = || members.iter().position(|other| other.address == member.address);
        let place = lost.or_else(at);
        // Those that are there keep their names, by which the plan knows them.
        let others = members.iter().enumerate().filter(|(at, _)| Some(*at) != place);
        let taken = others.map(|(_, other)| other.name().to_owned()).collect();
        member.offer.name = free_name(&member.offer.name, taken);
        match place {
            Some(place) => members[place] = member,
            None => members.push(member),
        }
    }
}

/// Finds two addresses that lead to one worker; addresses that lead nowhere are not its concern.
async fn refuse_doubles(security: &Security, addresses: &[String]) -> Result<(), Error> {
    if addresses.len() < 2 {
        return Ok(());
    }
    let looks =
        futures_util::future::join_all(addresses.iter().map(|address| look(security, address)));
    let looks = looks.await;
    let mut seen = HashMap::new();
    for (address, look) in addresses.iter().zip(looks) {
        let Ok((_, offer)) = look else { continue };
        if let Some(first) = seen.insert(offer.instance, address.clone()) {
            let (name, second) = (offer.name, address.clone());
            return Err(Error::SameWorker { name, first, second });
        }
    }
    Ok(())
}

/// Connects and asks the worker what it is, without holding it.
///
/// # Errors
/// [`Error::Connect`], [`Error::Protocol`], [`Error::Impostor`], [`Error::Offer`] or [`Error::Call`].
pub async fn look(security: &Security, address: &str) -> Result<(Client, Offer), Error> {
    let (mut client, peer) = connect(security, address, None, Tag::default()).await?;
    let request = client.describe(wire::DescribeRequest {});
    let said = within(address, "describe itself", request).await?;
    if said.protocol != PROTOCOL {
        let (version, protocol) = (plain(said.version, "-.+"), said.protocol);
        return Err(Error::Protocol { address: address.to_owned(), version, protocol });
    }
    if let Peer::Worker(certified) = peer
        && certified != said.worker_id
    {
        let (address, claimed) = (address.to_owned(), plain(said.worker_id, ""));
        return Err(Error::Impostor { address, certified, claimed });
    }
    let offer = Offer::try_from(said)
        .map_err(|source| Error::Offer { name: address.to_owned(), source })?;
    Ok((client, offer))
}

/// Two workers on one host have its name, and one host may be called as the master is in plans: the
/// later ones get `-2`, `-3`, ….
fn make_names_unique(members: &mut [Member]) {
    let mut taken = HashSet::new();
    for member in members {
        member.offer.name = free_name(&member.offer.name, taken.clone());
        taken.insert(member.offer.name.clone());
    }
}

/// `wanted`, or with a number after it where that is the master's or one of these.
fn free_name(wanted: &str, mut taken: HashSet<String>) -> String {
    taken.insert(LOCAL.to_owned());
    let numbered = (2..).map(|number| format!("{wanted}-{number}"));
    let mut names = std::iter::once(wanted.to_owned()).chain(numbered);
    names.find(|name| !taken.contains(name)).expect("there is no end of names")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_somebody_has_gets_a_number() {
        let taken = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        assert_eq!(free_name("attic", taken(&["cellar"])), "attic");
        assert_eq!(free_name("attic", taken(&["attic", "attic-2"])), "attic-3");
        assert_eq!(free_name(LOCAL, HashSet::new()), "master-2", "the master is called so");
    }
}
