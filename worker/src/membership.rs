//! Whose worker this is: it joins a cluster once, and keeps its certificate beside its store.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cake_discovery::{About, News, Role, look_out};
use cake_identity::{Error, Identity, JoinToken, Peer, Security, join};
use tracing::{debug, info, warn};

/// The file beside the store that has the worker's key and certificate.
const FILE: &str = "identity.json";
/// How long a master may take to be found by whoever wants to join.
const FIND: Duration = Duration::from_secs(20);

/// Whether this worker is a member of a cluster, and how it connects. A handle.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    security: Security,
    member: Option<Arc<Member>>,
}

struct Member {
    worker_id: String,
    path: PathBuf,
    identity: Mutex<Identity>,
}

/// How to become a member.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The worker's store.
    pub store: &'a Path,
    /// Where the master's door is (HOST:PORT), if anybody said.
    pub master: Option<&'a str>,
    /// What opens it.
    pub token: Option<&'a JoinToken>,
    /// What the worker calls itself.
    pub name: &'a str,
    /// The id that it would like to have.
    pub worker_id: &'a str,
    /// Where it listens, if it does.
    pub listen: Option<SocketAddr>,
    /// Whether the door may be looked for on the network.
    pub discover: bool,
}

/// What a member whose store is there is called; `None` if it is none, or never was told.
pub fn kept_name(store: &Path) -> Option<String> {
    Identity::open(&store.join(FILE)).ok()??.name
}

/// Whether a worker whose store is there is a member already.
pub fn is_member(store: &Path) -> bool {
    store.join(FILE).exists()
}

impl Membership {
    /// What is kept beside the store; with a token of a cluster that this worker is no member of, or not any
    /// more, it joins. A member that is started with the token it once joined with stays who it is.
    ///
    /// # Errors
    /// [`Error`], one sentence.
    pub async fn enter(entry: Entry<'_>) -> Result<Self, Error> {
        let path = entry.store.join(FILE);
        let kept = Identity::open(&path)?.map(|kept| Self::of(&path, kept)).transpose()?;
        if let Some(Err(error)) = kept.as_ref().map(|kept| kept.note_name(entry.name)) {
            warn!(%error, "this worker's name will not be remembered");
        }
        let Some(token) = entry.token else {
            let kept = kept.unwrap_or_default();
            entry.master.map_or(Ok(()), |master| kept.remember(master))?;
            return Ok(kept);
        };
        let trusts =
            |kept: &Self| kept.identity().is_some_and(|own| own.trusts_authority_of(token));
        let joined = match kept.filter(trusts) {
            None => entry.join(token).await?,
            Some(own) => match entry.meet(&own).await {
                Ok(master) => {
                    own.remember(&master)?;
                    return Ok(own);
                }
                Err(error) => match (error.no_member_at(), entry.master) {
                    (Some(door), _) => entry.join_at(door, token).await?,
                    // Why it is not heard as a member may have been lost on the way.
                    (None, Some(door)) => match entry.join_at(door, token).await {
                        Ok(joined) => joined,
                        Err(error) => return Ok(own.although(&error)),
                    },
                    // Its master is away. It is looked for again and again.
                    (None, None) => return Ok(own.although(&error)),
                },
            },
        };
        joined.keep(&path)?;
        info!(master = joined.master, "joined");
        Self::of(&path, joined)
    }

    fn although(self, error: &Error) -> Self {
        warn!(%error, "starting as the member that this worker is");
        self
    }

    fn of(path: &Path, identity: Identity) -> Result<Self, Error> {
        let Some(Peer::Worker(worker_id)) = identity.peer() else {
            let reason = "it is not of a worker".to_owned();
            let what = "the certificate of a worker";
            return Err(Error::Damaged { what, path: path.to_owned(), reason });
        };
        let security = Security::mutual(&identity)?;
        let member = Member { worker_id, path: path.to_owned(), identity: Mutex::new(identity) };
        Ok(Self { security, member: Some(Arc::new(member)) })
    }

    /// In plain text, whatever is kept.
    pub fn insecure() -> Self {
        Self::default()
    }

    /// How this worker connects.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// The id in its certificate.
    pub fn worker_id(&self) -> Option<&str> {
        self.member.as_ref().map(|member| member.worker_id.as_str())
    }

    /// The name of its cluster.
    pub fn cluster(&self) -> Option<String> {
        self.identity().map(|identity| identity.cluster())
    }

    /// Where its master was last (HOST:PORT).
    pub fn master(&self) -> Option<String> {
        self.identity().and_then(|identity| identity.master.clone())
    }

    /// What its master calls it, as far as it is known; `None` if this worker is no member.
    pub fn name(&self) -> Option<String> {
        self.identity().and_then(|identity| identity.name.clone())
    }

    fn identity(&self) -> Option<MutexGuard<'_, Identity>> {
        // Only ever replaced as a whole.
        let member = self.member.as_ref()?;
        Some(member.identity.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Remembers where its master is. Waits for a disk.
    ///
    /// # Errors
    /// [`Error`] if that cannot be kept.
    pub fn remember(&self, master: &str) -> Result<(), Error> {
        self.note(|identity| &mut identity.master, master)
    }

    /// Remembers what this worker is called. Waits for a disk.
    ///
    /// # Errors
    /// [`Error`] if that cannot be kept.
    pub fn note_name(&self, name: &str) -> Result<(), Error> {
        self.note(|identity| &mut identity.name, name)
    }

    fn note(
        &self,
        field: impl Fn(&mut Identity) -> &mut Option<String>,
        value: &str,
    ) -> Result<(), Error> {
        let (Some(member), Some(mut identity)) = (&self.member, self.identity()) else {
            return Ok(());
        };
        if field(&mut identity).as_deref() == Some(value) {
            return Ok(());
        }
        let before = field(&mut identity).replace(value.to_owned());
        // What is not kept is not known: it is tried again.
        identity.keep(&member.path).inspect_err(|_| *field(&mut identity) = before)
    }

    /// What to sign for another certificate; `None` if this worker is no member.
    ///
    /// # Errors
    /// [`Error::Certificate`].
    pub fn request(&self) -> Result<Option<Vec<u8>>, Error> {
        self.identity().map(|identity| identity.request()).transpose()
    }

    /// Keeps a renewed certificate and shows it from now on. Waits for a disk.
    ///
    /// # Errors
    /// [`Error`] if it is not this worker's, or cannot be kept.
    pub fn renew(&self, certificate: Vec<u8>) -> Result<(), Error> {
        let (Some(member), Some(mut identity)) = (&self.member, self.identity()) else {
            return Ok(());
        };
        let renewed = identity.renewed(certificate)?;
        self.security.renew(&renewed)?;
        renewed.keep(&member.path)?;
        *identity = renewed;
        info!("the certificate is renewed");
        Ok(())
    }
}

impl Entry<'_> {
    /// Joins at the door that was named, or else at one that is found.
    async fn join(&self, token: &JoinToken) -> Result<Identity, Error> {
        match self.master {
            Some(master) => self.join_at(master, token).await,
            None => {
                self.find(token.cluster(), async |place| self.join_at(&place, token).await).await
            }
        }
    }

    /// Says hello as the member `own` where the master was said to be, or else where it was last or is found, and
    /// returns where it is.
    async fn meet(&self, own: &Membership) -> Result<String, Error> {
        let hello = async |master: String| {
            let name = own.name();
            let noted =
                join::hello(&master, &own.security, self.listen, false, name.as_deref()).await?;
            own.note_name(noted.name.as_deref().unwrap_or(self.name))?;
            Ok(master)
        };
        let Some(known) = self.master.map(str::to_owned).or_else(|| own.master()) else {
            return self.find(own.cluster().unwrap_or_default(), hello).await;
        };
        match hello(known).await {
            Err(error)
                if self.master.is_none() && self.discover && error.no_member_at().is_none() =>
            {
                debug!(%error, "looking for the master");
                self.find(own.cluster().unwrap_or_default(), hello).await
            }
            met => met,
        }
    }

    /// What `go` comes back with from the first place where the master of `cluster` is found to be.
    async fn find<T>(
        &self,
        cluster: String,
        go: impl AsyncFn(String) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if !self.discover {
            return Err(match self.listen {
                Some(listen) if listen.ip().is_loopback() => Error::OnLoopback { listen },
                _ => Error::NotLooked,
            });
        }
        let id = self.worker_id.to_owned();
        let mut news = look_out(About { role: Role::Worker, cluster, id, listen: None });
        let find = async {
            while let Some(news) = news.recv().await {
                let News::Seen(sighting) = news else { continue };
                for address in sighting.addresses {
                    match go(address.to_string()).await {
                        // Whoever says that the master is there is wrong, or lies.
                        Err(error @ Error::Unreachable { .. })
                            if error.no_member_at().is_none() => {}
                        gone => return gone,
                    }
                }
            }
            Err(Error::NotFound)
        };
        tokio::time::timeout(FIND, find).await.unwrap_or(Err(Error::NotFound))
    }

    async fn join_at(&self, door: &str, token: &JoinToken) -> Result<Identity, Error> {
        join::join(door, token, self.name, self.worker_id, self.listen).await
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({})", self.worker_id)
    }
}

#[cfg(test)]
mod tests {
    use cake_identity::Authority;

    use super::*;

    #[tokio::test]
    async fn one_that_does_not_look_for_its_master_says_why() {
        let folder = tempfile::tempdir().expect("a folder");
        let (state, lifetime) = (folder.path().join("authority"), Duration::from_secs(60));
        let authority = Authority::create(&state, lifetime).expect("an authority");
        let token = authority.issue_token(lifetime, 1).expect("a token");
        let entry = |listen: &str| Entry {
            store: folder.path(),
            master: None,
            token: Some(&token),
            name: "a",
            worker_id: "0123456789abcdef0123456789abcdef",
            listen: Some(listen.parse().expect("an address")),
            discover: false,
        };
        let why = async |listen| Membership::enter(entry(listen)).await.expect_err("nowhere");
        let local = why("127.0.0.1:7117").await.to_string();
        assert!(
            local.contains("--listen 0.0.0.0:7117") && local.contains("--no-listen"),
            "{local}"
        );
        assert!(why("0.0.0.0:7117").await.to_string().contains("--no-discovery"));
    }
}
