//! How a worker joins, and says later where it is.
//!
//! ```text
//! worker                                              master
//!   ── TLS, no certificate; authority by fingerprint ──▶
//!   ── Join { token's id, proof, request, name } ──────▶  checks the proof, takes a use of the token
//!   ◀──────────────── Joined { certificate } ───────────
//!
//!   ── TLS, both with certificates ────────────────────▶
//!   ── Hello { address } ──────────────────────────────▶  remembers the address, and looks who is there
//!   ◀──────────────── Noted { reachable } ──────────────
//! ```
//!
//! One message each way, a length of four bytes and JSON. The proof holds for this TLS session alone, so that replaying it
//! proves nothing. A worker whose answer is lost asks again with the same key, and gets another certificate as the same
//! member, without another use of the token.

mod visit;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use self::visit::{Event, Visit};
use crate::book::seconds;
use crate::entry::is_worker_name;
use crate::fingerprint::fingerprint;
use crate::listener::take_all;
use crate::security::{client_config, server_config};
use crate::stream::buffered;
use crate::token::proof;
use crate::verify::{Clock, Trust, Verifier};
use crate::{
    Authority, Error, Identity, JoinToken, Peer, Refusal, Revoked, Security, Stream, WorkerEntry,
    expires_seconds, files, hex, lines, random,
};

/// Longest message.
const MESSAGE: usize = 16 << 10;
/// How long a master may take for all of it.
const ANSWER: Duration = Duration::from_secs(10);
/// How often a worker asks whose answers are lost: with the same key, so that the master knows it again.
const ATTEMPTS: u32 = 4;
/// Before it asks again, at first: a door that waited for this worker alone closes soon.
const PAUSE: Duration = Duration::from_millis(50);
/// Events that may wait for whoever reports them.
const EVENTS: usize = 64;

/// What a worker asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// To become a member.
    Join {
        /// Which token it has.
        token: String,
        /// That it has it: see [`proof`].
        #[serde(with = "files::base64_bytes")]
        proof: Vec<u8>,
        /// Its certificate signing request.
        #[serde(with = "files::base64_bytes")]
        request: Vec<u8>,
        /// What it calls itself.
        name: String,
        /// The id that it would like to have.
        worker_id: String,
        /// Where it listens; nowhere if it opens lines itself.
        listen: Option<SocketAddr>,
    },
    /// To be found where it listens now; it is a member.
    Hello {
        /// Where it listens; nowhere if it opens lines itself.
        listen: Option<SocketAddr>,
        /// Whether it answers there yet.
        answers: bool,
        /// What it calls itself.
        #[serde(default)]
        name: Option<String>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Joined {
        #[serde(with = "files::base64_bytes")]
        certificate: Vec<u8>,
        /// What it is called: no two members have one name.
        #[serde(default)]
        name: Option<String>,
    },
    Noted {
        reachable: bool,
        /// As in [`Answer::Joined`].
        #[serde(default)]
        name: Option<String>,
    },
    Refused(String),
}

/// Lets workers join at `listener` until the result is dropped, and keeps the lines that members open for
/// whoever connects by `security`, the master's. Runs on the current runtime.
///
/// # Errors
/// [`Error`] if the authority's identity cannot be made.
pub fn door(
    listener: TcpListener,
    authority: Arc<Authority>,
    security: Security,
) -> Result<mpsc::Receiver<Visit>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = Trust::Certificate(authority.certificate().clone());
    let revoked = security.revoked().cloned().unwrap_or_default();
    let verifier = Verifier { trust, clock: Clock::Own, revoked, provider, strangers: true };
    let mut config = server_config(Arc::new(verifier), &authority.master_identity()?)?;
    config.alpn_protocols = vec![lines::PROTOCOL.to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (events, receiver) = mpsc::channel(EVENTS);
    let greet = move |tcp: TcpStream| {
        let (acceptor, authority) = (acceptor.clone(), authority.clone());
        let security = security.clone();
        async move {
            let from = tcp.peer_addr().map_err(Refusal::Handshake)?.ip();
            let tls = acceptor.accept(buffered(tcp)).await.map_err(Refusal::of_handshake)?;
            let list = security.revoked().map(Revoked::watch);
            let stream = Stream::tls(tls.into(), list);
            if let (Some(lines::PROTOCOL), Some(lines)) = (stream.protocol(), security.lines()) {
                let worker_id = lines.put(stream).ok_or(Refusal::NoCertificate)?;
                return Ok(Visit { event: Event::Line { worker_id }, _telling: None });
            }
            answer(stream, from, authority, &security).await.map_err(Refusal::Handshake)
        }
    };
    tokio::spawn(take_all(listener, false, greet, events));
    Ok(receiver)
}

/// One conversation, from the master's side.
async fn answer(
    mut stream: Stream,
    from: IpAddr,
    authority: Arc<Authority>,
    security: &Security,
) -> io::Result<Visit> {
    let (peer, session) = (stream.peer().clone(), stream.session_key());
    let bytes = receive_bytes(&mut stream).await?;
    let telling = authority.telling().await;
    let book = authority.clone();
    let decide = move || decide(&book, &bytes, &peer, session, from);
    let decided = tokio::task::spawn_blocking(decide).await.map_err(io::Error::other)?;
    let (answer, result) = match decided {
        Ok((Answer::Noted { reachable: false, name }, Event::Hello { worker_id, address })) => {
            let (reachable, event) = look(authority, security, worker_id, address).await?;
            (Answer::Noted { reachable, name }, event)
        }
        Ok((answer, event)) => (answer, Ok(event)),
        Err(reason) => (Answer::Refused(reason.clone()), Err(io::Error::other(reason))),
    };
    send(&mut stream, &answer).await?;
    stream.shutdown().await.ok();
    Ok(Visit { event: result?, _telling: Some(telling) })
}

/// Looks for a member where it says that it answers, and notes where it can be reached: there, or else over lines.
async fn look(
    authority: Arc<Authority>,
    security: &Security,
    worker_id: String,
    address: String,
) -> io::Result<(bool, io::Result<Event>)> {
    let (id, book) = (worker_id.clone(), authority.clone());
    let known = move || {
        let mut book = book.book().read()?;
        Ok::<_, Error>(book.member_mut(&id).map(|member| member.address.clone()))
    };
    let known = tokio::task::spawn_blocking(known).await.map_err(io::Error::other)?;
    let Some(from) = known.map_err(io::Error::other)? else {
        return Err(io::Error::other("a worker that is no member any more"));
    };
    let reachable = security.finds(&address, &Peer::Worker(worker_id.clone())).await;
    let address = if reachable { address } else { lines::address(&worker_id) };
    let (id, to) = (worker_id.clone(), address.clone());
    // What another hello has noted meanwhile stays.
    let note = move || authority.book().moved(&id, &from, &to);
    let noted = tokio::task::spawn_blocking(note).await.map_err(io::Error::other)?;
    noted.map_err(io::Error::other)?;
    Ok((reachable, Ok(Event::Hello { worker_id, address })))
}

/// What to answer: a function of what is known and what was said. Changes the book on disk.
fn decide(
    authority: &Authority,
    bytes: &[u8],
    peer: &Peer,
    session: Option<[u8; 32]>,
    from: IpAddr,
) -> Result<(Answer, Event), String> {
    // What is wrong here is told to its owner in the log, not to a stranger.
    let broken = |error: Error| {
        tracing::error!(%error, "cannot answer a worker at the door");
        "the master cannot do that now".to_owned()
    };
    let request = parse_request(bytes).map_err(|_| "this is no request".to_owned())?;
    match (request, peer) {
        (Request::Hello { listen, answers, name }, Peer::Worker(worker_id)) => {
            let name = name.map(usable_name).transpose()?;
            let at = |listen| reachable(listen, from).to_string();
            let address = listen.map_or_else(|| lines::address(worker_id), at);
            // Where it says that it answers is looked at before it is noted, and told.
            let looks = answers && listen.is_some();
            let known = authority.book().update(|book| {
                let name = name.map(|name| book.free_name(&name, worker_id));
                let member = book.member_mut(worker_id)?;
                if !looks {
                    member.address.clone_from(&address);
                }
                if let Some(name) = name.filter(|_| !member.named) {
                    member.name = name;
                }
                Some(member.name.clone())
            });
            let name = known.map_err(broken)?.ok_or("this worker is no member")?;
            let answer = Answer::Noted { reachable: !looks, name: Some(name) };
            Ok((answer, Event::Hello { worker_id: worker_id.clone(), address }))
        }
        (Request::Hello { .. }, _) => Err("only a member has an address here".to_owned()),
        (Request::Join { token, proof: shown, request, name, worker_id, listen }, _) => {
            let invalid = "the token is not valid";
            let session = session.ok_or(invalid)?;
            let key = authority.book().read().map_err(broken)?.token_key(&token).ok_or(invalid)?;
            let expected = proof(&key, &session, &signed(&request, &name));
            let shown = <[u8; 32]>::try_from(shown.as_slice()).map_err(|_| invalid)?;
            // Comparing these hashes takes the same time wherever they differ.
            if expected != blake3::Hash::from_bytes(shown) {
                return Err(invalid.to_owned());
            }
            let name = usable_name(name)?;
            let listen = listen.map(|listen| reachable(listen, from));
            if let Some(at) = listen
                && at.ip().is_loopback()
                && !from.to_canonical().is_loopback()
            {
                return Err(format!(
                    "{at} is an address that only the worker itself can reach: start it with --listen \
                     0.0.0.0:{}, or with --no-listen",
                    at.port()
                ));
            }
            let unreadable = |_| "the certificate request cannot be read";
            let joined = authority.book().update(|book| {
                let key = Authority::requested_key(&request).map_err(unreadable)?;
                let now = SystemTime::now();
                let worker_id = book.admit(&token, &key, &worker_id, now)?;
                let name = book.free_name(&name, &worker_id);
                let certificate =
                    authority.sign_request(&request, &worker_id).map_err(unreadable)?;
                let line = || lines::address(&worker_id);
                let address = listen.map_or_else(line, |listen| listen.to_string());
                let entry = WorkerEntry {
                    worker_id: worker_id.clone(),
                    name: name.clone(),
                    address: address.clone(),
                    joined_seconds: seconds(now),
                    expires_seconds: expires_seconds(&certificate),
                    revoked: false,
                    named: false,
                    draining: false,
                };
                match book.member_mut(&worker_id) {
                    Some(known) => *known = entry,
                    None => book.workers.push(entry),
                }
                Ok::<_, &str>((worker_id, name, address, certificate))
            });
            let (worker_id, name, address, certificate) = joined.map_err(broken)??;
            let certificate = certificate.to_vec();
            let answer = Answer::Joined { certificate, name: Some(name.clone()) };
            Ok((answer, Event::Joined { worker_id, name, address }))
        }
    }
}

/// A name that tables and messages can show.
fn usable_name(name: String) -> Result<String, String> {
    match is_worker_name(&name) {
        true => Ok(name),
        false => Err("the worker's name cannot be used".to_owned()),
    }
}

/// What a worker asks, from its bytes.
pub(crate) fn parse_request(bytes: &[u8]) -> serde_json::Result<Request> {
    serde_json::from_slice(bytes)
}

/// What a proof covers beside the session.
fn signed(request: &[u8], name: &str) -> Vec<u8> {
    [blake3::hash(request).as_bytes(), name.as_bytes()].concat()
}

/// Where a worker that says that it listens at `listen` can be found, seen from its master.
fn reachable(listen: SocketAddr, from: IpAddr) -> SocketAddr {
    match listen.ip().is_unspecified() {
        true => SocketAddr::new(from.to_canonical(), listen.port()),
        false => listen,
    }
}

/// Joins the cluster of the master at `address`: the worker called `name`, which listens at `listen`, if
/// anywhere, and would like to have this id. What it got is in the identity.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::Refused`] with the master's reason, [`Error::Answer`].
pub async fn join(
    address: &str,
    token: &JoinToken,
    name: &str,
    worker_id: &str,
    listen: Option<SocketAddr>,
) -> Result<Identity, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier {
        trust: Trust::Fingerprint(token.fingerprint),
        clock: Clock::Certificate,
        revoked: Revoked::default(),
        provider,
        strangers: false,
    };
    let connector = TlsConnector::from(Arc::new(client_config(Arc::new(verifier), None)?));
    let key = KeyPair::generate()?;
    let request = CertificateParams::default().serialize_request(&key)?.der().to_vec();
    // Once it has asked, the master may have let this worker in, whatever comes back.
    let asking = AtomicBool::new(false);
    let talk = || async {
        let tcp = TcpStream::connect(address).await?;
        let any = ServerName::try_from("master.cake.internal").map_err(io::Error::other)?;
        let tls = connector.connect(any, buffered(tcp)).await?;
        let mut stream = Stream::tls(tls.into(), None);
        if *stream.peer() != Peer::Master {
            return Err(io::Error::other(format!("{} is there", stream.peer())));
        }
        let pinned =
            |certificate: &&CertificateDer<'_>| fingerprint(certificate) == token.fingerprint;
        let authority = stream.certificates().iter().find(pinned).cloned();
        let session = stream.session_key();
        let (Some(authority), Some(session)) = (authority, session) else {
            return Err(io::Error::other("no certificate of its authority"));
        };
        let proof = proof(&token.key(), &session, &signed(&request, name)).as_bytes().to_vec();
        let (token, name, worker_id) = (hex(&token.id), name.to_owned(), worker_id.to_owned());
        let request = request.clone();
        let asked = Request::Join { token, proof, request, name, worker_id, listen };
        asking.store(true, Ordering::Relaxed);
        Ok((ask(&mut stream, &asked).await?, authority))
    };
    let mut pause = PAUSE;
    let mut attempts = 1..ATTEMPTS;
    let (answer, authority) = loop {
        match within(address, talk()).await {
            Ok(answered) => break answered,
            Err(error) if asking.load(Ordering::Relaxed) && attempts.next().is_some() => {
                tracing::warn!(%error, "the master's answer is lost; asking again");
            }
            Err(error) => return Err(error),
        }
        let [jitter] = random();
        tokio::time::sleep(pause + pause * u32::from(jitter) / 256).await;
        pause *= 2;
    };
    let expected = "a certificate";
    let wrong = || Error::Answer { address: address.to_owned(), expected };
    match answer {
        Answer::Joined { certificate, name } => {
            let mut identity = Identity::new(certificate.into(), key.serialize_der(), authority);
            identity.name = name;
            identity.master = Some(address.to_owned());
            match identity.peer() {
                Some(Peer::Worker(_)) => Ok(identity),
                _ => Err(wrong()),
            }
        }
        Answer::Refused(reason) => Err(Error::Refused { address: address.to_owned(), reason }),
        Answer::Noted { .. } => Err(wrong()),
    }
}

/// What a master noted of a member that said hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Whether it need not wait for lines, since it reaches the member where that listens.
    pub reachable: bool,
    /// What the member is called: no two have one name. Not told by a master of an older version.
    pub name: Option<String>,
}

/// Tells the master at `address` that this member, which calls itself `name` if anything, listens at `listen` now, if
/// anywhere, and if it `answers` there yet.
///
/// # Errors
/// As [`join`].
pub async fn hello(
    address: &str,
    security: &Security,
    listen: Option<SocketAddr>,
    answers: bool,
    name: Option<&str>,
) -> Result<Noted, Error> {
    let name = name.map(str::to_owned);
    let talk = async {
        let mut stream = security.reach(address, Some(&Peer::Master)).await?;
        ask(&mut stream, &Request::Hello { listen, answers, name }).await
    };
    match within(address, talk).await? {
        Answer::Noted { reachable, name } => {
            Ok(Noted { reachable: reachable && listen.is_some(), name })
        }
        Answer::Refused(reason) => Err(Error::Refused { address: address.to_owned(), reason }),
        Answer::Joined { .. } => {
            Err(Error::Answer { address: address.to_owned(), expected: "a note" })
        }
    }
}

async fn within<T>(address: &str, talk: impl Future<Output = io::Result<T>>) -> Result<T, Error> {
    let late = || Err(io::Error::from(io::ErrorKind::TimedOut));
    let result = tokio::time::timeout(ANSWER, talk).await.unwrap_or_else(|_| late());
    result.map_err(|source| Error::Unreachable { address: address.to_owned(), source })
}

async fn ask(stream: &mut Stream, request: &Request) -> io::Result<Answer> {
    send(stream, request).await?;
    parse(&receive_bytes(stream).await?)
}

async fn send(stream: &mut Stream, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let len = u32::try_from(json.len()).map_err(io::Error::other)?;
    stream.write_all(&len.to_be_bytes()).await?;
    stream.write_all(&json).await?;
    stream.flush().await
}

async fn receive_bytes(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len).await?;
    let len = u32::from_be_bytes(len) as usize;
    if len > MESSAGE {
        return Err(io::Error::other(format!("more than {MESSAGE} bytes announced")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(io::Error::from)
}

impl Identity {
    /// A request for another certificate of the same key.
    ///
    /// # Errors
    /// [`Error::Certificate`] if the key cannot be used.
    pub fn request(&self) -> Result<Vec<u8>, Error> {
        let key = KeyPair::try_from(&PrivatePkcs8KeyDer::from(self.key().to_vec()))?;
        Ok(CertificateParams::default().serialize_request(&key)?.der().to_vec())
    }
}
