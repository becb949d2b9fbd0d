//! Handshakes over real sockets: who gets in, who does not, and what they are told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::join::{self, Event};
use crate::{
    Authority, DEFAULT_LIFETIME, Error, Identity, Incoming, JoinToken, Peer, Refusal, Revoked,
    Security, incoming, random_token,
};

const HOUR: Duration = Duration::from_secs(3600);

/// An authority with its door open.
struct Master {
    authority: Arc<Authority>,
    door: String,
    revoked: Revoked,
    events: mpsc::Receiver<Event>,
    _directory: tempfile::TempDir,
}

impl Master {
    async fn new(lifetime: Duration) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), lifetime).expect("made");
        let (authority, revoked) = (Arc::new(authority), Revoked::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let door = listener.local_addr().expect("bound").to_string();
        let events = join::door(listener, authority.clone(), revoked.clone()).expect("open");
        Self { authority, door, revoked, events, _directory: directory }
    }

    fn token(&self, uses: u32) -> JoinToken {
        self.authority.issue_token(HOUR, uses).expect("issued")
    }

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

fn listen() -> SocketAddr {
    "0.0.0.0:7117".parse().expect("an address")
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
    tokio::time::timeout(Duration::from_secs(3), talk).await.unwrap_or(Err(Refusal::Silent))
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
    let event = master.events.recv().await;
    let (worker_id, name) = (wanted.clone(), "phone".to_owned());
    assert_eq!(event, Some(Event::Joined { worker_id, name, address }));
    let worker = Security::mutual(&identity).expect("usable");
    let (there, at) = serve(&worker).await;
    let mut peers = echo(there);
    connect(&master.security(), at, None).await.expect("let in");
    assert_eq!(peers.recv().await, Some(Peer::Master));
    let (_, other) = master.worker().await;
    connect(&other, at, Some(&Peer::Worker(wanted.clone()))).await.expect("let in");
    assert!(matches!(peers.recv().await, Some(Peer::Worker(id)) if id != wanted));
    join::hello(&master.door, &worker, "10.1.2.3:9".parse().expect("one")).await.expect("noted");
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
    assert!(connect(&Security::Plain, at, None).await.is_err());
    assert!(connect(&foreign, at, None).await.is_err());
    assert!(connect(&other.security(), at, None).await.is_err());
    // The other way round: a master, or a worker, does not talk to whom it does not know.
    let (there, elsewhere) = serve(&foreign).await;
    let mut strangers = echo(there);
    assert!(connect(&master.security(), elsewhere, None).await.is_err());
    let (there, plain) = serve(&Security::Plain).await;
    let mut anybody = echo(there);
    assert!(connect(&master.security(), plain, None).await.is_err(), "no way down to plain text");
    assert!(peers.try_recv().is_err() && strangers.try_recv().is_err());
    assert!(matches!(anybody.recv().await, Some(Peer::Unknown)));
    // A member, but another one than expected.
    let expected = Peer::Worker(random_token());
    let refusal = connect(&master.security(), at, Some(&expected)).await.expect_err("another");
    assert!(matches!(refusal, Refusal::Other { .. }), "{refusal}");
    assert!(connect(&worker, at, Some(&Peer::Master)).await.is_err(), "a worker is no master");
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
    let cut = tokio::time::timeout(Duration::from_secs(5), cut).await.expect("at once");
    let error = cut.expect("no panic").expect_err("cut off");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
    assert!(connect(&security, at, None).await.is_err());
    master.revoked.set([id]);
    assert!(join::hello(&master.door, &worker, listen()).await.is_err());
}

#[tokio::test]
async fn a_certificate_ends_by_the_masters_clock_and_is_renewed_before() {
    let master = Master::new(Duration::from_secs(1)).await;
    let (identity, worker) = master.worker().await;
    let (there, at) = serve(&worker).await;
    let _peers = echo(there);
    connect(&master.security(), at, None).await.expect("still valid");
    let (other, _) = master.worker().await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let error = connect(&master.security(), at, None).await.expect_err("expired").to_string();
    assert!(error.contains("xpired"), "{error}");
    // Workers do not judge time among themselves: their clocks may be anything.
    let other = Security::mutual(&other).expect("usable");
    connect(&other, at, None).await.expect("let in");
    let Some(Peer::Worker(id)) = identity.peer() else { panic!("a worker") };
    let request = identity.request().expect("made");
    let renewed = master.authority.sign_request(&request, &id).expect("signed");
    worker.renew(&identity.renewed(renewed.to_vec()).expect("its own")).expect("usable");
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

/// Stands between a client and a server, and keeps what it sees of the first connection.
#[derive(Clone, Default)]
struct Relay(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    connections: usize,
    from_client: Vec<u8>,
    /// Of the handshake: bytes of the server before the client spoke again.
    handshake: usize,
}

impl Relay {
    /// Where it listens. What the server says after the handshake of the first connection is kept back if
    /// `swallow`: the client hears only that the connection ends.
    async fn start(&self, to: SocketAddr, swallow: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let relay = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = relay.change(|seen| {
                    seen.connections += 1;
                    seen.connections
                });
                let server = TcpStream::connect(to).await.expect("it listens");
                let ((from, mut back), (answers, mut asked)) =
                    (client.into_split(), server.into_split());
                let (first, up) = (number == 1, relay.clone());
                tokio::spawn(async move {
                    let ask = |bytes: &[u8]| {
                        up.change(|seen| {
                            if first {
                                seen.from_client.extend_from_slice(bytes);
                            }
                        });
                        true
                    };
                    pump(from, &mut asked, ask).await;
                });
                let down = relay.clone();
                tokio::spawn(async move {
                    let mut hello = None;
                    let answer = |bytes: &[u8]| {
                        down.change(|seen| {
                            // A client says one thing, hears the server's whole half, and goes on.
                            let said = *hello.get_or_insert(seen.from_client.len());
                            let shaking = seen.from_client.len() == said;
                            if first && shaking {
                                seen.handshake += bytes.len();
                            }
                            shaking || !first || !swallow
                        })
                    };
                    pump(answers, &mut back, answer).await;
                });
            }
        });
        address
    }

    fn change<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.0.lock().expect("no holder panics"))
    }
}

/// Moves what `passes` lets through, until the end.
async fn pump(
    mut from: OwnedReadHalf,
    to: &mut (impl AsyncWriteExt + Unpin),
    mut passes: impl FnMut(&[u8]) -> bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if passes(&buffer[..count]) && to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    to.shutdown().await.ok();
}

#[tokio::test]
async fn a_worker_whose_answer_is_lost_asks_again_and_is_one_member_for_one_use() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let relay = Relay::default();
    let through = relay.start(master.door.parse().expect("an address"), true).await.to_string();
    let (token, wanted) = (master.token(1), random_token());
    let joined = join::join(&through, &token, "phone", &wanted, listen()).await.expect("joined");
    assert_eq!(relay.change(|seen| seen.connections), 2, "the first answer was lost");
    assert_eq!(joined.peer(), Some(Peer::Worker(wanted.clone())));
    let book = master.authority.book().read().expect("readable");
    let ids: Vec<_> = book.members().map(|member| member.worker_id.clone()).collect();
    assert_eq!(ids, [wanted]);
    let worker = Security::mutual(&joined).expect("usable");
    join::hello(&master.door, &worker, listen()).await.expect("a member");
    let used = master.join(&token).await.err().expect("refused").to_string();
    assert!(used.contains("used already"), "{used}");
}

/// Sends what a client sent once more; how much comes back until the server ends the connection.
async fn again(relay: &Relay, to: SocketAddr) -> usize {
    let sent = relay.change(|seen| seen.from_client.clone());
    assert!(sent.len() > 500, "a hello and more: {} bytes", sent.len());
    let mut tcp = TcpStream::connect(to).await.expect("taken");
    tcp.write_all(&sent).await.expect("sent");
    let mut back = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(3), tcp.read_to_end(&mut back)).await;
    end.expect("the server ends it").ok(); // It may end it with a reset.
    back.len()
}

/// An alert (24 bytes), and what two signatures differ in. Whoever is answered hears more.
const ALERT: usize = 24 + 8;

#[tokio::test]
async fn a_recorded_join_or_hello_sent_again_is_refused_and_changes_nothing() {
    let mut master = Master::new(DEFAULT_LIFETIME).await;
    let door: SocketAddr = master.door.parse().expect("an address");
    let token = master.token(2); // One use is left: it is not the token that stops anybody.
    let (joining, saying) = (Relay::default(), Relay::default());
    let through = joining.start(door, false).await.to_string();
    let joined = join::join(&through, &token, "phone", &random_token(), listen()).await;
    let worker = Security::mutual(&joined.expect("joined")).expect("usable");
    let through = saying.start(door, false).await.to_string();
    join::hello(&through, &worker, "10.1.2.3:9".parse().expect("one")).await.expect("noted");
    // Since then it has moved: who replays would move it back.
    join::hello(&master.door, &worker, "10.1.2.4:9".parse().expect("one")).await.expect("noted");
    for _ in 0..3 {
        master.events.recv().await.expect("a join and two of a hello");
    }
    let before = master.authority.book().read().expect("readable");
    for relay in [&joining, &saying] {
        let most = relay.change(|seen| seen.handshake) + ALERT;
        let back = again(relay, door).await;
        assert!(back <= most, "{back} bytes came back, of a handshake {most}");
    }
    assert!(master.events.try_recv().is_err());
    assert!(master.authority.book().read().expect("readable") == before);
    master.join(&token).await.expect("the door is open, and the use is left");
}

#[tokio::test]
async fn a_recorded_connection_of_a_master_sent_again_is_refused() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (_, worker) = master.worker().await;
    let (there, at) = serve(&worker).await;
    let mut peers = echo(there);
    let relay = Relay::default();
    let through = relay.start(at, false).await;
    connect(&master.security(), through, None).await.expect("let in");
    assert_eq!(peers.recv().await, Some(Peer::Master));
    let most = relay.change(|seen| seen.handshake) + ALERT;
    let back = again(&relay, at).await;
    assert!(back <= most, "{back} bytes came back, of a handshake {most}");
    assert!(peers.try_recv().is_err(), "nobody was let in");
    connect(&master.security(), at, None).await.expect("it goes on");
    assert_eq!(peers.recv().await, Some(Peer::Master));
}
