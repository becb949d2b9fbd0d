//! What was sent once and is sent again, by whoever lost the answer or recorded it.
use tokio::net::tcp::OwnedReadHalf;

use super::*;

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
    join::hello(&master.door, &worker, listen(), false, None).await.expect("a member");
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
    let end = tokio::time::timeout(LIMIT, tcp.read_to_end(&mut back)).await;
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
    join::hello(&through, &worker, "10.1.2.3:9".parse().ok(), false, None).await.expect("noted");
    // Since then it has moved: who replays would move it back.
    join::hello(&master.door, &worker, "10.1.2.4:9".parse().ok(), false, None)
        .await
        .expect("noted");
    for _ in 0..3 {
        master.visits.recv().await.expect("a join and two of a hello");
    }
    let before = master.authority.book().read().expect("readable");
    for relay in [&joining, &saying] {
        let most = relay.change(|seen| seen.handshake) + ALERT;
        let back = again(relay, door).await;
        assert!(back <= most, "{back} bytes came back, of a handshake {most}");
    }
    assert!(master.visits.try_recv().is_err());
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
