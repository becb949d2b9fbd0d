//! Whose worker this is: it joins a cluster once, keeps its certificate beside its store, and tells its
//! master where it listens.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cake_identity::{Error, Identity, JoinToken, Peer, Security, join};
use tracing::{info, warn};

/// The file beside the store that has the worker's key and certificate.
const FILE: &str = "identity.json";
/// How often the master is told where this worker listens: soon enough after either has moved.
const HELLO: Duration = Duration::from_secs(30);
/// How often it is tried while the master does not answer, at first.
const HELLO_RETRY: Duration = Duration::from_secs(1);

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
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The master's door (HOST:PORT).
    pub master: String,
    /// What opens it.
    pub token: JoinToken,
}

/// Whether a worker whose store is there is a member already.
pub fn is_member(store: &Path) -> bool {
    store.join(FILE).exists()
}

impl Membership {
    /// What is kept beside `store`; with an invitation to a cluster that this worker is no member of, or
    /// not any more, it joins as the worker called `name`, which listens at `listen`.
    ///
    /// # Errors
    /// [`Error`], one sentence.
    pub async fn enter(
        store: &Path,
        invitation: Option<&Invitation>,
        name: &str,
        worker_id: &str,
        listen: SocketAddr,
    ) -> Result<Self, Error> {
        let path = store.join(FILE);
        let kept = Identity::open(&path)?.map(|kept| Self::of(&path, kept)).transpose()?;
        let Some(Invitation { master, token }) = invitation else {
            return Ok(kept.unwrap_or_default());
        };
        if let Some(kept) = &kept
            && kept.identity().is_some_and(|identity| identity.trusts_authority_of(token))
        {
            let said = join::hello(master, &kept.security, listen).await;
            if said.is_ok() {
                return kept.clone().with_master(master);
            }
        }
        match (join::join(master, token, name, worker_id, listen).await, kept) {
            (Ok(identity), _) => {
                identity.keep(&path)?;
                info!(%master, "joined");
                Self::of(&path, identity)
            }
            // It was started with the token that it once joined with, and its master is away.
            (Err(error @ Error::Unreachable { .. }), Some(kept))
                if kept.identity().is_some_and(|identity| identity.trusts_authority_of(token)) =>
            {
                warn!(%error, "starting as the member that this worker is");
                Ok(kept)
            }
            (Err(error), _) => Err(error),
        }
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

    fn identity(&self) -> Option<MutexGuard<'_, Identity>> {
        // Only ever replaced as a whole.
        let member = self.member.as_ref()?;
        Some(member.identity.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Remembers where its master is.
    fn with_master(self, master: &str) -> Result<Self, Error> {
        if let (Some(member), Some(mut identity)) = (&self.member, self.identity())
            && identity.master.as_deref() != Some(master)
        {
            identity.master = Some(master.to_owned());
            identity.keep(&member.path)?;
        }
        Ok(self)
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

    /// Tells the master again and again where this worker listens; ends at once if there is nobody to tell.
    pub async fn announce(self, listen: SocketAddr) {
        let Some(master) = self.identity().and_then(|identity| identity.master.clone()) else {
            return;
        };
        let (mut retry, mut told) = (HELLO_RETRY, false);
        loop {
            match join::hello(&master, &self.security, listen).await {
                Ok(()) => {
                    if !told {
                        info!(%master, "the master knows where this worker is");
                    }
                    (retry, told) = (HELLO_RETRY, true);
                    tokio::time::sleep(HELLO).await;
                }
                Err(error) => {
                    if told || retry == HELLO_RETRY {
                        info!(%error, "the master does not answer; trying again");
                    }
                    told = false;
                    tokio::time::sleep(retry).await;
                    retry = (retry * 3 / 2).min(HELLO);
                }
            }
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({})", self.worker_id)
    }
}
