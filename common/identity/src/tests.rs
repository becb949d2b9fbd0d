//! Handshakes over real sockets: who gets in, who does not, and what they are told.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::join::{self, Event, Visit};
use crate::{
    Authority, DEFAULT_LIFETIME, Error, Identity, Incoming, JoinToken, Peer, Refusal, Revoked,
    Security, incoming, random_token,
};

mod replay;
mod reverse;

const HOUR: Duration = Duration::from_secs(3600);
/// How long anything may take that comes at once: whoever waits longer has failed, and was not refused.
const LIMIT: Duration = Duration::from_secs(60);

/// An authority with its door open.
struct Master {
    authority: Arc<Authority>,
    door: String,
    security: Security,
    visits: mpsc::Receiver<Visit>,
    _directory: tempfile::TempDir,
}

impl Master {
    async fn new(lifetime: Duration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), lifetime).expect("made");
        let security = Security::mutual(&authority.master_identity().expect("made"));
        let (authority, security) = (Arc::new(authority), security.expect("usable"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let door = listener.local_addr().expect("bound").to_string();
        let visits = join::door(listener, authority.clone(), security.clone()).expect("open");
        Self { authority, door, security, visits, _directory: directory }
    }

    fn token(&self, uses: u32) -> JoinToken {
        self.authority.issue_token(HOUR, uses).expect("issued")
    }

    /// Of another process of this master, which has a list of its own of who is revoked.
    fn security(&self) -> Security {
        Security::mutual(&self.authority.master_identity().expect("made")).expect("usable")
    }

    async fn join(&self, token: &JoinToken) -> Result<Identity, Error> {
        join::join(&self.door, token, "phone", &random_token(), listen()).await
    }

    async fn worker(&self) -> (Identity, Security) {
        let identity = self.join(&self.token(1)).await.expect("joined");
        let security = Security::mutual(&identity).expect("usable");
        (identity, security)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_that_closes_as_the_last_has_joined_has_told_it_so_and_whoever_hears_of_it() {
    for round in 0..20 {
        let Master { authority, door, mut visits, _directory, .. } = Master::new(HOUR).await;
        let has_noted = Arc::new(AtomicBool::new(false));
        let noted = has_noted.clone();
        let hearing = tokio::spawn(async move {
            let visit = visits.recv().await.expect("somebody joins");
            tokio::task::yield_now().await;
            noted.store(true, Ordering::Release);
            drop(visit);
            visits
        });
        let token = authority.issue_token(HOUR, 1).expect("issued");
        let joining = tokio::spawn(async move {
            join::join(&door, &token, "phone", &random_token(), listen()).await
        });
        while authority.book().read().expect("readable").workers.is_empty() {
            tokio::task::yield_now().await;
        }
        authority.has_told().await;
        assert!(has_noted.load(Ordering::Acquire), "round {round}");
        drop(hearing.await.expect("no panic"));
        joining.await.expect("no panic").unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

#[tokio::test]
async fn a_door_waits_for_whoever_holds_what_it_heard_or_has_gone() {
    for is_heard in [true, false] {
        let Master { authority, door, mut visits, _directory, .. } = Master::new(HOUR).await;
        let token = authority.issue_token(HOUR, 1).expect("issued");
        join::join(&door, &token, "phone", &random_token(), listen()).await.expect("joined");
        let visit = visits.recv().await.expect("somebody joined");
        tokio::select! {
            biased;
            () = authority.has_told() => panic!("nobody has noted it yet"),
            () = std::future::ready(()) => {}
        }
        match is_heard {
            true => drop(visit),
            false => drop((visits, visit)),
        }
        authority.has_told().await;
    }
}

fn listen() -> Option<SocketAddr> {
    "0.0.0.0:7117".parse().ok()
}

async fn serve(security: &Security) -> (Incoming, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (incoming(listener, security.clone()), address)
}

async fn connect(from: &Security, to: SocketAddr, expected: Option<&Peer>) -> Result<(), Refusal> {
    let talk = async {
        let tcp = TcpStream::connect(to).await.map_err(Refusal::Handshake)?;
        let mut stream = from.connect(tcp, expected).await?;
        // With TLS 1.3 a client hears of a refusal with the first answer.
        stream.write_all(b"hello").await.map_err(Refusal::Handshake)?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await.map_err(Refusal::Handshake).map(drop)
    };
    tokio::time::timeout(LIMIT, talk).await.expect("an answer or a refusal")
}

/// Whether the other side ended the connection and said nothing.
fn is_ended(refusal: &Refusal) -> bool {
    let Refusal::Handshake(error) = refusal else { return false };
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)
}

/// Answers everybody who is let in with what they said, and returns who they were.
fn echo(mut incoming: Incoming) -> mpsc::UnboundedReceiver<Peer> {
    let (send, peers) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(mut stream) = incoming.next().await {
            send.send(stream.peer().clone()).ok();
            tokio::spawn(async move {
                let mut said = [0; 5];
                while stream.read_exact(&mut said).await.is_ok() {
                    if stream.write_all(&said).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    peers
}

#[tokio::test]
async fn a_worker_joins_and_both_sides_know_each_other_from_then_on() {
    let mut master = Master::new(DEFAULT_LIFETIME).await;
    let wanted = random_token();
    let token = master.token(1);
    let joined = join::join(&master.door, &token, "phone", &wanted, listen()).await;
    let identity = joined.expect("joined");
    assert_eq!(identity.peer(), Some(Peer::Worker(wanted.clone())));
    let address = "127.0.0.1:7117".to_owned(); // Where it came from, with the port that it said.
    let visit = master.visits.recv().await.expect("somebody joined");
    let (worker_id, name) = (wanted.clone(), "phone".to_owned());
    assert_eq!(visit.event, Event::Joined { worker_id, name, address });
    let worker = Security::mutual(&identity).expect("usable");
    let (there, at) = serve(&worker).await;
    let mut peers = echo(there);
    connect(&master.security(), at, None).await.expect("let in");
    assert_eq!(peers.recv().await, Some(Peer::Master));
    let (_, other) = master.worker().await;
    connect(&other, at, Some(&Peer::Worker(wanted.clone()))).await.expect("let in");
    assert!(matches!(peers.recv().await, Some(Peer::Worker(id)) if id != wanted));
    let moved = "10.1.2.3:9".parse().ok();
    join::hello(&master.door, &worker, moved, false, None).await.expect("noted");
    let book = master.authority.book().read().expect("readable");
    assert_eq!(book.members().next().map(|member| member.address.as_str()), Some("10.1.2.3:9"));
}

#[tokio::test]
async fn tokens_that_are_wrong_used_expired_or_of_another_authority_open_nothing() {
    let (master, other) = (Master::new(DEFAULT_LIFETIME).await, Master::new(HOUR).await);
    let reason =
        async |token: &JoinToken| master.join(token).await.err().expect("refused").to_string();
    let made_up = JoinToken::new(master.authority.fingerprint());
    assert!(reason(&made_up).await.contains("not valid"));
    let token = master.token(1);
    let mut forged = JoinToken::new(master.authority.fingerprint());
    forged.id = token.id; // A token that is out, without its secret.
    assert!(reason(&forged).await.contains("not valid"));
    let late = master.authority.issue_token(Duration::ZERO, 1).expect("issued");
    assert!(reason(&late).await.contains("expired"));
    master.join(&token).await.expect("a forged proof took no use of it");
    assert!(reason(&token).await.contains("used already"));
    // The worker does not talk to an authority that its token does not name.
    assert!(matches!(master.join(&other.token(1)).await, Err(Error::Unreachable { .. })));
    assert_eq!(master.authority.book().read().expect("readable").workers.len(), 1);
}

#[tokio::test]
async fn nobody_gets_the_id_of_another_worker() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (first, _) = master.worker().await;
    let Some(Peer::Worker(id)) = first.peer() else { panic!("a worker") };
    let second = join::join(&master.door, &master.token(1), "phone", &id, listen()).await;
    assert_ne!(second.expect("joined").peer(), first.peer());
}

#[tokio::test]
async fn plain_text_strangers_and_members_of_other_clusters_are_refused_on_both_sides() {
    let (master, other) = (Master::new(DEFAULT_LIFETIME).await, Master::new(HOUR).await);
    let (_, worker) = master.worker().await;
    let (_, foreign) = other.worker().await;
    let (there, at) = serve(&worker).await;
    let mut peers = echo(there);
    let refused = async |from: &Security, to, expected: Option<&Peer>| {
        connect(from, to, expected).await.expect_err("refused")
    };
    let refusal = refused(&Security::Plain, at, None).await;
    assert!(is_ended(&refusal), "{refusal}");
    for stranger in [&foreign, &other.security()] {
        let refusal = refused(stranger, at, None).await;
        assert!(matches!(refusal, Refusal::Foreign), "{refusal}");
    }
    // The other way round: a master, or a worker, does not talk to whom it does not know.
    let (there, elsewhere) = serve(&foreign).await;
    let mut strangers = echo(there);
    let refusal = refused(&master.security(), elsewhere, None).await;
    assert!(matches!(refusal, Refusal::Foreign), "{refusal}");
    let (mut there, plain) = serve(&Security::Plain).await;
    let anybody = tokio::spawn(async move {
        let mut stream = there.next().await.expect("somebody");
        stream.write_all(b"hello").await.expect("heard");
        stream.peer().clone()
    });
    let refusal = refused(&master.security(), plain, None).await;
    assert!(matches!(refusal, Refusal::PlainText), "no way down to plain text: {refusal}");
    assert!(peers.try_recv().is_err() && strangers.try_recv().is_err());
    assert_eq!(anybody.await.expect("no panic"), Peer::Unknown);
    // A member, but another one than expected; and a worker is no master.
    for (from, expected) in
        [(&master.security(), Peer::Worker(random_token())), (&worker, Peer::Master)]
    {
        let refusal = refused(from, at, Some(&expected)).await;
        assert!(matches!(refusal, Refusal::Other { .. }), "{refusal}");
    }
}

#[tokio::test]
async fn who_is_revoked_is_cut_off_at_once_and_stays_out() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (identity, worker) = master.worker().await;
    let Some(Peer::Worker(id)) = identity.peer() else { panic!("a worker") };
    let (there, at) = serve(&worker).await;
    let _peers = echo(there);
    let security = master.security();
    let tcp = TcpStream::connect(at).await.expect("reached");
    let mut stream = security.connect(tcp, None).await.expect("a member");
    let cut = tokio::spawn(async move { stream.read_u8().await });
    security.revoked().expect("mutual").set([id.clone()]);
    let cut = tokio::time::timeout(LIMIT, cut).await.expect("at once");
    let error = cut.expect("no panic").expect_err("cut off");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    let refusal = connect(&security, at, None).await.expect_err("it stays out");
    assert!(matches!(refusal, Refusal::Revoked), "{refusal}");
    master.security.revoked().expect("mutual").set([id]);
    let error = join::hello(&master.door, &worker, listen(), false, None).await;
    let error = error.expect_err("it stays out");
    // What it says after the handshake may reset the connection before it hears why.
    let is_reset = matches!(&error, Error::Unreachable { source, .. } if source.kind() == ErrorKind::ConnectionReset);
    assert!(is_reset || error.no_member_at() == Some(&*master.door), "{error}");
}

#[tokio::test]
async fn a_certificate_ends_by_the_masters_clock_and_is_renewed_before() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (identity, worker) = master.worker().await;
    let (there, at) = serve(&worker).await;
    let _peers = echo(there);
    connect(&master.security(), at, None).await.expect("valid");
    let (other, _) = master.worker().await;
    let Some(Peer::Worker(id)) = identity.peer() else { panic!("a worker") };
    let request = identity.request().expect("made");
    let renew_at = |now| {
        let signed = master.authority.sign_request_at(now, &request, &id).expect("signed");
        worker.renew(&identity.renewed(signed.to_vec()).expect("its own")).expect("usable");
    };
    renew_at(SystemTime::now() - DEFAULT_LIFETIME - HOUR);
    let error = connect(&master.security(), at, None).await.expect_err("expired").to_string();
    assert!(error.contains("xpired"), "{error}");
    // Workers do not judge time among themselves: their clocks may be anything.
    let other = Security::mutual(&other).expect("usable");
    connect(&other, at, None).await.expect("let in");
    renew_at(SystemTime::now());
    connect(&master.security(), at, None).await.expect("valid again");
    let foreign = master.authority.sign_request(&request, &random_token()).expect("signed");
    assert!(identity.renewed(foreign.to_vec()).is_err(), "of another worker");
}

#[tokio::test]
async fn a_thousand_silent_connections_and_what_is_no_request_leave_the_door_open() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (_, worker) = master.worker().await;
    let (there, at) = serve(&worker).await;
    let mut peers = echo(there);
    let mut idle = Vec::new();
    for at in std::iter::repeat_n([at, master.door.parse().expect("an address")], 200).flatten() {
        idle.push(TcpStream::connect(at).await.expect("taken"));
    }
    for at in [at, master.door.parse().expect("an address")] {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16; 600], &[0; 70]] {
            let mut tcp = TcpStream::connect(at).await.expect("taken");
            tcp.write_all(bytes).await.ok();
            idle.push(tcp);
        }
    }
    connect(&master.security(), at, None).await.expect("let in");
    assert_eq!(peers.recv().await, Some(Peer::Master));
    master.worker().await;
}
