//! The master's side of trust: its authority, the workers that joined, and how it connects.
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cake_identity::{Authority, Security, WorkerEntry};
use cake_proto::{Client, wire};
use tokio::net::lookup_host;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::sightings::{Sighting, Sightings};
use crate::sign::{self, DoorSign, Sign};

/// Port of the door that workers join at, unless told otherwise.
pub const DOOR_PORT: u16 = 7116;
/// How often the list of workers is read again, which other processes of this master may change.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// A certificate is renewed when less than this part of its time is left.
const RENEW_PART: u64 = 3;

/// Why the cluster's trust cannot be had, or does not allow something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No environment variable says where the authority is.
    #[error("no place for the certificate authority: set CAKE_STATE or HOME")]
    NoPlace,
    /// The authority cannot be used.
    #[error(transparent)]
    Identity(#[from] cake_identity::Error),
    /// A command that needs an authority.
    #[error(
        "there is no certificate authority in {directory} yet: make one with `cake-master init`"
    )]
    NoAuthority {
        /// Where it would be.
        directory: PathBuf,
    },
    /// Plain text on a network, unasked.
    #[error(
        "{address} is on the network, and without a certificate authority connections are in plain text: \
         make one with `cake-master init` and let the worker join with a token, or accept that with \
         --insecure"
    )]
    PlainText {
        /// The worker's address.
        address: String,
    },
}

/// Whether there is an authority, and how connections are made. A handle.
#[derive(Clone, Default)]
pub struct Membership {
    security: Security,
    authority: Option<Arc<Authority>>,
    /// When members were last heard of.
    sightings: Option<Sightings>,
    /// Woken when a worker that is held says something, or its owner of it.
    pub news: Arc<Notify>,
    /// Ids of workers that are to have no layers, as their owner says. Of those that joined, the authority remembers it.
    draining: Arc<Mutex<BTreeSet<String>>>,
    /// Leases that this process has of workers, by their ids, the latest last.
    leases: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl Membership {
    /// Where a master's authority is kept: `authority` in the directory named by `CAKE_STATE`, else in `cake`
    /// in the user's data directory.
    ///
    /// # Errors
    /// [`Error::NoPlace`].
    pub fn directory() -> Result<PathBuf, Error> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let directory = variable("CAKE_STATE")
            .map(PathBuf::from)
            .or_else(|| variable("XDG_DATA_HOME").map(|data| PathBuf::from(data).join("cake")))
            .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".local/share/cake")));
        Ok(directory.ok_or(Error::NoPlace)?.join("authority"))
    }

    /// With this master's authority, if it has one. Then the list of those that are shut out is
    /// followed for as long as a clone of this lives; call it on a runtime.
    ///
    /// # Errors
    /// [`Error::Identity`] if it is damaged.
    pub fn open() -> Result<Self, Error> {
        let directory = Self::directory()?;
        let Some(authority) = Authority::open(&directory)? else {
            return Ok(Self::default());
        };
        let sightings = Some(Sightings::in_directory(&directory));
        let authority = Arc::new(authority);
        let security = Security::mutual(&authority.master_identity()?)?;
        read_revoked(&security, &authority);
        let drained = authority.book().read()?;
        let drained = drained.members().filter(|member| member.draining);
        let draining = drained.map(|member| member.worker_id.clone()).collect();
        let news = Arc::default();
        let membership = Self {
            security,
            authority: Some(authority.clone()),
            sightings,
            news,
            draining: Arc::new(Mutex::new(draining)),
            leases: Arc::default(),
        };
        tokio::spawn(follow(
            Arc::downgrade(&membership.news),
            membership.security.clone(),
            authority,
        ));
        Ok(membership)
    }

    /// Says to other processes of this master where the door is that this one has open, until the result is dropped.
    /// Waits for a disk.
    pub fn put_up_door(&self, address: SocketAddr) -> Option<Sign> {
        let sign = DoorSign { address: address.to_string() };
        let put = Self::directory().ok().map(|home| Sign::put(&home, &sign))?;
        put.inspect_err(|error| warn!(%error, "other commands will not know of this door")).ok()
    }

    /// Where doors are that processes of this master have open. Waits for a disk.
    pub fn doors(&self) -> Vec<SocketAddr> {
        let signs = Self::directory().map_or(Vec::new(), |home| sign::all::<DoorSign>(&home));
        signs.iter().filter_map(|sign| sign.address.parse().ok()).collect()
    }

    /// What a command says that needs an authority.
    pub fn missing() -> Error {
        match Self::directory() {
            Ok(directory) => Error::NoAuthority { directory },
            Err(error) => error,
        }
    }

    /// How connections are made.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The authority.
    pub fn authority(&self) -> Option<&Arc<Authority>> {
        self.authority.as_ref()
    }

    /// Workers that joined and are not shut out.
    pub fn members(&self) -> Vec<WorkerEntry> {
        let Some(authority) = &self.authority else { return Vec::new() };
        match authority.book().read() {
            Ok(book) => book.members().cloned().collect(),
            Err(error) => {
                warn!(%error, "who joined is not known");
                Vec::new()
            }
        }
    }

    /// Notes that these members, by their ids, are there now, with what each offers, if it said.
    pub async fn seen(&self, members: Vec<(String, Option<u64>)>) {
        if let Some(sightings) = self.sightings.clone().filter(|_| !members.is_empty()) {
            tokio::task::spawn_blocking(move || sightings.note(&members)).await.ok();
        }
    }

    /// When members were last heard of, by their ids.
    pub async fn sightings(&self) -> BTreeMap<String, Sighting> {
        let Some(sightings) = self.sightings.clone() else { return BTreeMap::new() };
        tokio::task::spawn_blocking(move || sightings.read()).await.unwrap_or_default()
    }

    /// Forgets when a member was last heard of.
    pub async fn forget_sighting(&self, worker_id: &str) {
        let (sightings, worker_id) = (self.sightings.clone(), worker_id.to_owned());
        let forget = move || sightings.iter().for_each(|known| known.forget(&worker_id));
        tokio::task::spawn_blocking(forget).await.ok();
    }

    /// Has the layers of the worker of this id go elsewhere, or lets it have some again, until it is said otherwise: of one
    /// that did not join, for as long as this process lives. Waits for a disk.
    ///
    /// # Errors
    /// [`Error::Identity`] if that cannot be remembered; then it is as it was.
    pub fn drain(&self, worker_id: &str, drain: bool) -> Result<(), Error> {
        if let Some(authority) = &self.authority {
            authority.book().update(|book| book.drain(worker_id, drain))?;
        }
        let mut draining = self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        match drain {
            true => _ = draining.insert(worker_id.to_owned()),
            false => _ = draining.remove(worker_id),
        }
        self.news.notify_one();
        Ok(())
    }

    /// Whether the worker of this id is to have no layers.
    pub fn is_draining(&self, worker_id: &str) -> bool {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner).contains(worker_id)
    }

    /// A lease that this process has of the worker of this id, for whoever wants another one beside it; empty if it has none.
    pub(crate) fn lease_of(&self, worker_id: &str) -> String {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(worker_id).and_then(|all| all.last()).cloned().unwrap_or_default()
    }

    /// The worker of this id has granted this lease.
    pub(crate) fn note_lease(&self, worker_id: &str, lease: &str) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.entry(worker_id.to_owned()).or_default().push(lease.to_owned());
    }

    /// That lease has ended.
    pub(crate) fn forget_lease(&self, worker_id: &str, lease: &str) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = leases.get_mut(worker_id) {
            all.retain(|one| one != lease);
            if all.is_empty() {
                leases.remove(worker_id);
            }
        }
    }

    /// What its owner calls the worker of this id, if they named it.
    pub fn name_given(&self, worker_id: &str) -> Option<String> {
        let members = self.members().into_iter();
        let mut given = members.filter(|member| member.named && member.worker_id == worker_id);
        given.next().map(|member| member.name)
    }

    /// Ids of workers that are shut out.
    pub fn shut_out(&self) -> Vec<String> {
        self.security
            .revoked()
            .map_or(Vec::new(), |revoked| revoked.watch().borrow().iter().cloned().collect())
    }

    /// Refuses to speak in plain text over a network.
    ///
    /// # Errors
    /// [`Error::PlainText`].
    pub async fn check(&self, addresses: &[String]) -> Result<(), Error> {
        if self.security.is_mutual() {
            return Ok(());
        }
        for address in addresses {
            // What cannot be looked up cannot be reached either, and that is told later.
            let Ok(mut found) = lookup_host(address).await else { continue };
            if found.any(|found| !found.ip().is_loopback()) {
                return Err(Error::PlainText { address: address.clone() });
            }
        }
        Ok(())
    }

    /// Gives a worker that this master holds another certificate if the one it has ends soon.
    pub(crate) async fn renew(&self, client: &mut Client, worker_id: &str) {
        let Some(authority) = &self.authority else { return };
        let known = self.members().into_iter().find(|member| member.worker_id == worker_id);
        let Some(known) = known else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let left = known.expires_seconds.saturating_sub(now);
        if left >= authority.lifetime().as_secs() / RENEW_PART {
            return;
        }
        match renew(authority.clone(), client, worker_id.to_owned()).await {
            Ok(()) => info!(worker = known.name, "its certificate is renewed"),
            Err(error) => warn!(worker = known.name, %error, "its certificate cannot be renewed"),
        }
    }
}

/// Ends with the last handle, whose `news` is gone then.
async fn follow(alive: Weak<Notify>, security: Security, authority: Arc<Authority>) {
    while alive.strong_count() > 0 {
        let (security, authority) = (security.clone(), authority.clone());
        tokio::task::spawn_blocking(move || read_revoked(&security, &authority)).await.ok();
        tokio::time::sleep(READ_AGAIN).await;
    }
}

fn read_revoked(security: &Security, authority: &Authority) {
    let Some(revoked) = security.revoked() else { return };
    match authority.book().read() {
        Ok(book) => revoked.set(book.revoked().map(str::to_owned)),
        Err(error) => warn!(%error, "who is shut out is not known any better than before"),
    }
}

async fn renew(
    authority: Arc<Authority>,
    client: &mut Client,
    worker_id: String,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let request = client.request_certificate(wire::CertificateRequest {}).await?.into_inner();
    let certificate = authority.sign_request(&request.der, &worker_id)?;
    let certificate = certificate.to_vec();
    let end = cake_identity::expires_seconds(&certificate);
    client.renew_certificate(wire::RenewRequest { certificate: certificate.into() }).await?;
    let note = move || {
        authority.book().update(|book| {
            if let Some(member) = book.member_mut(&worker_id) {
                member.expires_seconds = end;
            }
        })
    };
    tokio::task::spawn_blocking(note).await??;
    Ok(())
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.security.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_lease_that_lives_is_shown_for_another_one() {
        let membership = Membership::default();
        assert_eq!(membership.lease_of("a"), "");
        membership.note_lease("a", "one");
        membership.clone().note_lease("a", "two");
        membership.note_lease("b", "three");
        assert_eq!(membership.lease_of("a"), "two");
        membership.forget_lease("a", "two");
        membership.forget_lease("a", "three");
        assert_eq!(
            (membership.lease_of("a"), membership.lease_of("b")),
            ("one".into(), "three".into())
        );
        membership.forget_lease("a", "one");
        assert_eq!(membership.lease_of("a"), "");
    }
}
