//! Lines: connections that a worker opens for its master to call on.
use tokio_rustls::TlsConnector;

use super::*;
use crate::lines;
use crate::security::client_config;
use crate::verify::{Clock, Trust, Verifier};

/// What a worker does with its lines: answers those who call with what they said, one line after the other.
async fn offer(door: String, worker: Security) {
    while let Ok(line) = lines::open(&door, &worker).await {
        let Ok(mut stream) = line.called().await else { return };
        let mut said = [0; 5];
        while stream.read_exact(&mut said).await.is_ok() {
            stream.write_all(&said).await.expect("the master listens");
        }
    }
}

async fn call(master: &Master, id: &str) -> std::io::Result<()> {
    let expected = Peer::Worker(id.to_owned());
    let mut line = master.security.reach(&lines::address(id), Some(&expected)).await?;
    assert_eq!(line.peer(), &expected);
    line.write_all(b"hello").await?;
    let mut answer = [0; 5];
    line.read_exact(&mut answer).await?;
    assert_eq!(&answer, b"hello");
    Ok(())
}

fn id_of(identity: &Identity) -> String {
    match identity.peer() {
        Some(Peer::Worker(id)) => id,
        other => panic!("no worker: {other:?}"),
    }
}

#[tokio::test]
async fn a_master_calls_on_lines_that_a_worker_opened() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (identity, worker) = master.worker().await;
    let (id, expected) = (id_of(&identity), identity.peer().expect("a worker"));
    assert!(!master.security.finds(&lines::address(&id), &expected).await);
    // A call waits for a line, and the next one for the next line.
    tokio::spawn(offer(master.door.clone(), worker));
    call(&master, &id).await.expect("answered");
    call(&master, &id).await.expect("answered");
    // Nobody is called by another one's id.
    let other = Peer::Worker(random_token());
    let reached = master.security.reach(&lines::address(&id), Some(&other)).await;
    assert!(reached.err().expect("refused").to_string().contains("expected worker"));
}

#[tokio::test]
async fn of_many_lines_the_last_few_are_kept_and_one_that_is_silent_is_passed_over() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (identity, worker) = master.worker().await;
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(lines::open(&master.door, &worker).await.expect("opened"));
    }
    let ended = async |line: lines::Line| {
        tokio::time::timeout(LIMIT, line.called()).await.is_ok_and(|end| end.is_err())
    };
    for line in open.drain(..16) {
        assert!(ended(line).await, "closed for those that came later");
    }
    // The one before the last is there, the last one is not any more without having said so.
    let silent = open.pop().expect("four are left");
    let called = tokio::spawn(open.pop().expect("three are left").called());
    let address = lines::address(&id_of(&identity));
    master.security.reach(&address, None).await.expect("a line");
    called.await.expect("no panic").expect("called");
    drop(silent);
}

/// A line of somebody who may knock at the door, as one does to join, but has no certificate.
async fn stranger(master: &Master) -> impl tokio::io::AsyncRead + Unpin {
    let verifier = Verifier {
        trust: Trust::Fingerprint(master.authority.fingerprint()),
        clock: Clock::Certificate,
        revoked: Revoked::default(),
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        strangers: false,
    };
    let mut config = client_config(Arc::new(verifier), None).expect("usable");
    config.alpn_protocols = vec![lines::PROTOCOL.to_vec()];
    let tcp = TcpStream::connect(&master.door).await.expect("reached");
    let name = "master.cake.internal".try_into().expect("a name");
    let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("let in");
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(lines::PROTOCOL));
    tls
}

#[tokio::test]
async fn lines_of_strangers_of_another_cluster_and_of_the_revoked_are_not_kept() {
    let (master, other) = (Master::new(DEFAULT_LIFETIME).await, Master::new(HOUR).await);
    let (identity, worker) = master.worker().await;
    let (_, foreign) = other.worker().await;
    let id = id_of(&identity);
    // In TLS 1.3 whoever connects hears of a refusal when it reads.
    let refused = async |security: &Security| match lines::open(&master.door, security).await {
        Ok(line) => tokio::time::timeout(LIMIT, line.called()).await.expect("at once").is_err(),
        Err(_) => true,
    };
    assert!(refused(&foreign).await, "of another cluster");
    assert!(refused(&master.security()).await, "of a master");
    assert!(lines::open(&master.door, &Security::Plain).await.is_err());
    let mut stranger = stranger(&master).await;
    let end = tokio::time::timeout(LIMIT, stranger.read_u8()).await;
    assert!(end.expect("at once").is_err(), "of somebody without a certificate");
    let kept = lines::open(&master.door, &worker).await.expect("opened");
    let there = async {
        while !master.security.lines().expect("a master's").has(&id) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, there).await.expect("it is kept");
    drop(kept);
    // A line says nothing by itself.
    let mut talking = worker.open_line(&master.door).await.expect("opened");
    talking.write_all(b"PRI * HTTP/2.0").await.expect("sent");
    let end = tokio::time::timeout(LIMIT, talking.read_u8()).await;
    assert!(end.expect("at once").is_err(), "closed");
    let line = lines::open(&master.door, &worker).await.expect("opened");
    let called = tokio::spawn(line.called());
    master.security.revoked().expect("mutual").set([id.clone()]);
    let end = tokio::time::timeout(LIMIT, called).await.expect("at once");
    assert!(end.expect("no panic").is_err(), "closed when its worker was revoked");
    assert!(refused(&worker).await && call(&master, &id).await.is_err());
}

#[tokio::test]
async fn a_worker_hears_whether_its_master_reaches_it() {
    let master = Master::new(DEFAULT_LIFETIME).await;
    let (_, worker) = master.worker().await;
    let (_, other) = master.worker().await;
    let (there, at) = serve(&worker).await;
    let _peers = echo(there);
    let told = async |who: &Security, listen| {
        join::hello(&master.door, who, listen, true, None).await.expect("noted").reachable
    };
    assert!(told(&worker, Some(at)).await);
    assert!(!told(&other, Some(at)).await, "another one is there");
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().ok();
    assert!(!told(&worker, nobody).await);
    assert!(!told(&worker, None).await, "it listens nowhere");
}
