//! How connections are made: in plain text, or with both sides proving who they are.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::fingerprint::{cluster, fingerprint};
use crate::stream::{buffered, tune};
use crate::verify::{Clock, Trust, Verifier};
use crate::{
    Error, JoinToken, Lines, Peer, Refusal, Revoked, Stream, expires_seconds, files, lines,
};

/// The name that clients put into a handshake: certificates are looked at, it is not.
const ANY_NAME: &str = "member.cake.internal";
/// How long somebody may take to prove to be somewhere.
const FIND: Duration = Duration::from_secs(2);
const WHAT: &str = "the certificate of this worker";

/// A key, its certificate, and the authority that both sides trust.
#[derive(Serialize, Deserialize)]
pub struct Identity {
    #[serde(with = "files::base64_bytes")]
    certificate: Vec<u8>,
    #[serde(with = "files::base64_bytes")]
    key: Vec<u8>,
    #[serde(with = "files::base64_bytes")]
    authority: Vec<u8>,
    /// Where the master takes news of this worker's address, if it is known (HOST:PORT).
    pub master: Option<String>,
    /// What its master calls this worker, as it said last: no two of its workers have one name.
    #[serde(default)]
    pub name: Option<String>,
}

impl Identity {
    /// Of a certificate, its key in PKCS #8, and the authority's certificate.
    pub(crate) fn new(
        certificate: CertificateDer<'static>,
        key: Vec<u8>,
        authority: CertificateDer<'static>,
    ) -> Self {
        let (certificate, authority) = (certificate.to_vec(), authority.to_vec());
        Self { certificate, key, authority, master: None, name: None }
    }

    /// The one kept at `path`, if there is one.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Damaged`].
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        files::read(path, WHAT)
    }

    /// Keeps it where only its owner can read it.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn keep(&self, path: &Path) -> Result<(), Error> {
        files::write(path, WHAT, self)
    }

    /// Whom its certificate names, if it is one of a member.
    pub fn peer(&self) -> Option<Peer> {
        Peer::named_by(&self.certificate)
    }

    /// Whether this token is of the same authority.
    pub fn trusts_authority_of(&self, token: &JoinToken) -> bool {
        fingerprint(&CertificateDer::from(self.authority.as_slice())) == token.fingerprint
    }

    /// The name of its cluster, as [`crate::Authority::cluster`].
    pub fn cluster(&self) -> String {
        cluster(&fingerprint(&CertificateDer::from(self.authority.as_slice())))
    }

    /// Until when its certificate is valid, in seconds since 1970.
    pub fn expires_seconds(&self) -> u64 {
        expires_seconds(&self.certificate)
    }

    /// The same with another certificate of its key.
    ///
    /// # Errors
    /// [`Error::Tls`] if that is not for this member.
    pub fn renewed(&self, certificate: Vec<u8>) -> Result<Self, Error> {
        if Peer::named_by(&certificate) != self.peer() {
            return Err(rustls::Error::from(rustls::CertificateError::NotValidForName).into());
        }
        let (key, authority) = (self.key.clone(), self.authority.clone());
        let (master, name) = (self.master.clone(), self.name.clone());
        Ok(Self { certificate, key, authority, master, name })
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        // The authority goes along for those who know only its fingerprint.
        [&self.certificate, &self.authority].map(|der| CertificateDer::from(der.clone())).into()
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }
}

/// How this process connects and is connected to. A handle: clones share what can change.
#[derive(Clone, Default)]
pub enum Security {
    /// In plain text, with anybody.
    #[default]
    Plain,
    /// With members of the cluster alone.
    Mutual(Arc<Mutual>),
}

/// Mutual TLS.
pub struct Mutual {
    current: Mutex<Current>,
    revoked: Revoked,
    lines: Lines,
    clock: Clock,
    provider: Arc<CryptoProvider>,
}

/// What a renewed certificate replaces.
#[derive(Clone)]
struct Current {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    peer: Peer,
    expires_seconds: u64,
}

impl Security {
    /// For a member with this identity.
    ///
    /// # Errors
    /// [`Error::Tls`] if its parts do not belong together.
    pub fn mutual(identity: &Identity) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clock = match identity.peer() {
            Some(Peer::Master) => Clock::Own,
            _ => Clock::Certificate,
        };
        let revoked = Revoked::default();
        let current = Mutex::new(Current::new(identity, clock, &revoked, &provider)?);
        let lines = Lines::default();
        Ok(Self::Mutual(Arc::new(Mutual { current, revoked, lines, clock, provider })))
    }

    /// Whether connections are encrypted and both sides known.
    pub fn is_mutual(&self) -> bool {
        matches!(self, Self::Mutual(_))
    }

    /// Whom this process may not talk to; nobody can be told in plain text.
    pub fn revoked(&self) -> Option<&Revoked> {
        match self {
            Self::Plain => None,
            Self::Mutual(mutual) => Some(&mutual.revoked),
        }
    }

    /// Connections that wait for this process to call; nobody can offer any in plain text.
    pub fn lines(&self) -> Option<&Lines> {
        match self {
            Self::Plain => None,
            Self::Mutual(mutual) => Some(&mutual.lines),
        }
    }

    /// Until when this process's certificate is valid, in seconds since 1970.
    pub fn expires_seconds(&self) -> Option<u64> {
        match self {
            Self::Plain => None,
            Self::Mutual(mutual) => Some(mutual.lock().expires_seconds),
        }
    }

    /// Uses a renewed certificate for connections from now on.
    ///
    /// # Errors
    /// [`Error::Tls`] if its parts do not belong together.
    pub fn renew(&self, identity: &Identity) -> Result<(), Error> {
        if let Self::Mutual(mutual) = self {
            let Mutual { clock, revoked, provider, .. } = &**mutual;
            let renewed = Current::new(identity, *clock, revoked, provider)?;
            *mutual.lock() = renewed;
        }
        Ok(())
    }

    /// Makes a connection that this process opened usable. `expected` is who has to be there; any
    /// worker if nobody is named.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn connect(
        &self,
        tcp: TcpStream,
        expected: Option<&Peer>,
    ) -> Result<Stream, Refusal> {
        let Self::Mutual(mutual) = self else { return Ok(Stream::plain(tcp)) };
        let client = mutual.lock().client.clone();
        mutual.shake_hands(tcp, client, expected).await
    }

    /// A connection to whoever is at this address, which is HOST:PORT or one of [`lines::address`]. `expected` as
    /// in [`Security::connect`].
    ///
    /// # Errors
    /// What the system said, or a [`Refusal`].
    pub async fn reach(&self, address: &str, expected: Option<&Peer>) -> io::Result<Stream> {
        let Some(worker_id) = lines::worker_at(address) else {
            let tcp = TcpStream::connect(address).await?;
            tune(&tcp);
            let stream = self.connect(tcp, expected).await;
            return stream
                .map_err(|refusal| io::Error::other(format!("whoever is there {refusal}")));
        };
        let Self::Mutual(mutual) = self else {
            return Err(io::Error::other("lines need certificates"));
        };
        if mutual.revoked.has(&Peer::Worker(worker_id.to_owned())) {
            return Err(io::Error::other(format!("whoever is there {}", Refusal::Revoked)));
        }
        let stream = mutual.lines.take(worker_id).await?;
        fits(stream, expected).map_err(io::Error::other)
    }

    /// A line to the master at this address (HOST:PORT), for it to call on.
    pub(crate) async fn open_line(&self, address: &str) -> io::Result<Stream> {
        let Self::Mutual(mutual) = self else {
            return Err(io::Error::other("lines need certificates"));
        };
        let tcp = TcpStream::connect(address).await?;
        tune(&tcp);
        let mut client = ClientConfig::clone(&mutual.lock().client);
        client.alpn_protocols = vec![lines::PROTOCOL.to_vec()];
        let stream = mutual.shake_hands(tcp, Arc::new(client), Some(&Peer::Master)).await;
        let stream = stream.map_err(io::Error::other)?;
        match stream.protocol() == Some(lines::PROTOCOL) {
            true => Ok(stream),
            false => Err(io::Error::other("the master takes no lines at this address")),
        }
    }

    /// Whether `expected` is at this address (HOST:PORT) now, as a connection proves that is closed at
    /// once, or one that waits.
    pub async fn finds(&self, address: &str, expected: &Peer) -> bool {
        let Self::Mutual(mutual) = self else { return false };
        if let Some(worker_id) = lines::worker_at(address) {
            return mutual.lines.has(worker_id);
        }
        let meet = tokio::time::timeout(FIND, self.reach(address, Some(expected)));
        matches!(meet.await, Ok(Ok(_)))
    }

    /// Makes a connection that somebody else opened usable.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn accept(&self, tcp: TcpStream) -> Result<Stream, Refusal> {
        let Self::Mutual(mutual) = self else { return Ok(Stream::plain(tcp)) };
        let acceptor = TlsAcceptor::from(mutual.lock().server.clone());
        let tls = acceptor.accept(buffered(tcp)).await.map_err(Refusal::of_handshake)?;
        Ok(Stream::tls(tls.into(), Some(mutual.revoked.watch())))
    }
}

impl Mutual {
    async fn shake_hands(
        &self,
        tcp: TcpStream,
        client: Arc<ClientConfig>,
        expected: Option<&Peer>,
    ) -> Result<Stream, Refusal> {
        let name = ServerName::try_from(ANY_NAME).expect("the constant is a name");
        let tls = TlsConnector::from(client).connect(name, buffered(tcp)).await;
        let tls = tls.map_err(Refusal::of_handshake)?;
        fits(Stream::tls(tls.into(), Some(self.revoked.watch())), expected)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Only ever replaced as a whole.
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Current {
    fn new(
        identity: &Identity,
        clock: Clock,
        revoked: &Revoked,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let strangers = false;
        let trust = Trust::Certificate(CertificateDer::from(identity.authority.clone()));
        let (revoked, provider) = (revoked.clone(), provider.clone());
        let verifier = Verifier { trust, clock, revoked, provider, strangers };
        let verifier = Arc::new(verifier);
        Ok(Self {
            client: Arc::new(client_config(verifier.clone(), Some(identity))?),
            server: Arc::new(server_config(verifier, identity)?),
            peer: identity.peer().unwrap_or(Peer::Stranger),
            expires_seconds: identity.expires_seconds(),
        })
    }
}

/// The stream, if `expected` is at its other end; any worker if nobody is named.
fn fits(stream: Stream, expected: Option<&Peer>) -> Result<Stream, Refusal> {
    let found = stream.peer();
    let fits = match expected {
        Some(expected) => found == expected,
        None => matches!(found, Peer::Worker(_)),
    };
    match fits {
        true => Ok(stream),
        false => Err(Refusal::Other {
            found: found.to_string(),
            expected: expected.map_or("a worker".to_owned(), ToString::to_string),
        }),
    }
}

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain => f.write_str("Plain"),
            Self::Mutual(mutual) => write!(f, "Mutual({})", mutual.lock().peer),
        }
    }
}

/// TLS 1.3 alone, without resumption: a session that goes on would not look at certificates again.
pub(crate) fn client_config(
    verifier: Arc<Verifier>,
    identity: Option<&Identity>,
) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous() // Named so because it replaces the check of names and public authorities.
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain(), identity.private_key())?
        }
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.enable_sni = false; // Who listens in learns nothing of names.
    Ok(config)
}

/// See [`client_config`].
pub(crate) fn server_config(
    verifier: Arc<Verifier>,
    identity: &Identity,
) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.private_key())?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
