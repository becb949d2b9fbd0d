//! Somebody on the way who keeps what is said, and says it again later.
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes moved at once.
const BUFFER: usize = 64 << 10;
const CONNECT: Duration = Duration::from_secs(30);
/// Longer than anybody waits for a peer that is not known yet.
const ANSWER: Duration = Duration::from_secs(60);
/// Length of a TLS record's header: its kind, the version, the length of what follows.
const HEADER: usize = 5;

/// Forwards every connection to one address, and keeps what was said on it. Closed when dropped.
#[derive(Debug)]
pub struct Recorder {
    /// What clients are told instead of the server's address.
    pub address: String,
    local: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// In the order of the connections.
    conversations: Vec<Conversation>,
    open: Vec<TcpStream>,
}

/// What was said on one connection so far.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// By the client.
    pub said: Vec<u8>,
    /// By the server.
    pub heard: Vec<u8>,
}

/// A TLS record, as somebody who has no key sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The first byte: 20 is a change of cipher, 21 an alert, 22 a handshake, 23 anything encrypted.
    pub kind: u8,
    /// Of what follows the header.
    pub bytes: usize,
}

impl Recorder {
    /// A recorder before `target` (HOST:PORT).
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let local = listener.local_addr().expect("bound just above");
        let shared = Arc::new(Shared { target: target.to_owned(), state: Mutex::default() });
        let accepting = shared.clone();
        let acceptor = std::thread::spawn(move || accepting.accept(&listener));
        Self { address: local.to_string(), local, shared, acceptor: Some(acceptor) }
    }

    /// What was said on each connection so far.
    pub fn conversations(&self) -> Vec<Conversation> {
        self.shared.state().conversations.clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        for stream in state.open.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
        drop(state);
        TcpStream::connect_timeout(&self.local, CONNECT).ok(); // Wakes the acceptor.
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.state().closed {
                return;
            }
            let Ok(client) = client else { continue };
            self.forward(client).ok(); // A server that is gone: the client's connection closes.
        }
    }

    /// Starts the two directions of one connection.
    fn forward(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(&self.target)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        let mut state = self.state();
        state.open.extend([client.try_clone()?, server.try_clone()?]);
        let number = state.conversations.len();
        state.conversations.push(Conversation::default());
        drop(state);
        let (one, other) = (self.clone(), self.clone());
        std::thread::spawn(move || one.pump(from, to, number, |kept| &mut kept.said));
        std::thread::spawn(move || other.pump(server, client, number, |kept| &mut kept.heard));
        Ok(())
    }

    /// Moves and keeps bytes one way until either side ends.
    fn pump(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        number: usize,
        side: impl Fn(&mut Conversation) -> &mut Vec<u8>,
    ) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let bytes = &buffer[..count];
            side(&mut self.state().conversations[number]).extend_from_slice(bytes);
            if to.write_all(bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
        from.shutdown(Shutdown::Both).ok();
    }
}

/// Says these bytes to whoever listens at `address`, and returns the answer once the other side has ended
/// the connection. With `goodbye` it hears at once that nothing more will come.
///
/// # Panics
/// If nobody is there, or they do not end it.
#[track_caller]
pub fn say(address: &str, bytes: &[u8], goodbye: bool) -> Vec<u8> {
    let mut tcp = TcpStream::connect(address).expect("somebody listens");
    tcp.set_read_timeout(Some(ANSWER)).expect("a time");
    let mut reading = tcp.try_clone().expect("a handle");
    let reader = std::thread::spawn(move || {
        let (mut heard, mut buffer) = (Vec::new(), vec![0; BUFFER]);
        loop {
            match reading.read(&mut buffer) {
                Ok(0) => return heard,
                Ok(count) => heard.extend_from_slice(&buffer[..count]),
                // They did not even read all that was said.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return heard,
                Err(error) => panic!("they do not end it: {error}"),
            }
        }
    });
    // Who refuses may close before all is said.
    tcp.write_all(bytes).ok();
    if goodbye {
        tcp.shutdown(Shutdown::Write).ok();
    }
    reader.join().expect("they end it")
}

/// The TLS records in these bytes; the last one may be there in part.
pub fn records(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some(&[kind, _, _, high, low]) = bytes.first_chunk::<HEADER>() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        records.push(Record { kind, bytes: len });
        bytes = bytes.get(HEADER + len..).unwrap_or_default();
    }
    records
}

/// The first TLS record of what a client said: its hello.
///
/// # Panics
/// If that is not whole.
#[track_caller]
pub fn client_hello(said: &[u8]) -> &[u8] {
    let first = records(said).first().copied().expect("a record");
    assert_eq!(first.kind, 22, "a handshake begins");
    &said[..HEADER + first.bytes]
}
