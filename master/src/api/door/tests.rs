//! The door with real connections, and times that a test can wait for.

use std::convert::Infallible;

use axum::body::Bytes;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::metrics::Metrics;

/// Nothing here takes longer, unless it never happens.
const LIMIT: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);
const PATIENT: Bounds = Bounds { connections: 8, head: LONG, idle: LONG, unread: LONG };
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n";
const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A door that answers `/` at once, `/slow` when told to, and `/endless` for ever.
struct Open {
    address: SocketAddr,
    tell: watch::Sender<Stop>,
    begun: mpsc::UnboundedReceiver<()>,
    finish: mpsc::UnboundedSender<()>,
    metrics: Metrics,
    door: tokio::task::JoinHandle<()>,
}

async fn open_with(bounds: Bounds) -> Open {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("any port");
    let address = listener.local_addr().expect("bound");
    let (tell, stop) = watch::channel(Stop::No);
    let (begin, begun) = mpsc::unbounded_channel();
    let (finish, finished) = mpsc::unbounded_channel();
    let finished = Arc::new(tokio::sync::Mutex::new(finished));
    let answer = move |request: Request<Incoming>, place: Arc<Place>| {
        let (begin, finished) = (begin.clone(), finished.clone());
        async move {
            let body = match request.uri().path() {
                "/slow" => {
                    begin.send(()).expect("the test goes on");
                    finished.lock().await.recv().await;
                    Body::from("slow")
                }
                "/endless" => Body::from_stream(stream::repeat_with(|| {
                    Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 16 << 10]))
                })),
                _ => Body::from("fast"),
            };
            place.rests();
            Response::new(body)
        }
    };
    let metrics = Metrics::default();
    let counts = metrics.http.clone();
    let door = tokio::spawn(open(vec![listener], bounds, counts, stop, || FULL.to_vec(), answer));
    Open { address, tell, begun, finish, metrics, door }
}

impl Open {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// A connection whose request waits for [`Open::finish`].
    async fn slow(&mut self) -> TcpStream {
        let stream = self.saying(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
        timeout(LIMIT, self.begun.recv()).await.expect("in time").expect("the door is open");
        stream
    }

    /// Waits until there are so many connections.
    async fn connections(&self, count: usize) {
        let line = format!("cake_http_connections {count}");
        let counted = async {
            while !self.metrics.text().lines().any(|found| found == line) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, counted).await.expect("in time");
    }

    /// A connection that has said this.
    async fn saying(&self, what: &[u8]) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(what).await.expect("taken");
        stream
    }
}

/// The first bytes that come.
async fn some(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 4096];
    let read = timeout(LIMIT, stream.read(&mut bytes)).await.expect("in time").unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// Waits until the other side has closed the connection.
async fn closed(stream: &mut TcpStream) {
    let mut nowhere = Vec::new();
    // Reset, it is closed as well.
    timeout(LIMIT, stream.read_to_end(&mut nowhere)).await.expect("in time").ok();
}

#[tokio::test]
async fn who_does_not_say_what_it_asks_is_left_and_who_asks_again_is_not() {
    let open = open_with(Bounds { head: SHORT, ..PATIENT }).await;
    let mut silent = open.connect().await;
    let mut half = open.saying(&ASK[..20]).await;
    let mut idle = open.saying(ASK).await;
    assert!(some(&mut idle).await.ends_with("fast"));
    closed(&mut silent).await;
    closed(&mut half).await;
    idle.write_all(ASK).await.expect("still open");
    assert!(some(&mut idle).await.ends_with("fast"));
    // Half a second request is no better than half a first one.
    idle.write_all(&ASK[..20]).await.expect("still open");
    closed(&mut idle).await;
    let open = open_with(Bounds { idle: SHORT, ..PATIENT }).await;
    let mut idle = open.saying(ASK).await;
    assert!(some(&mut idle).await.ends_with("fast"));
    closed(&mut idle).await;
}

#[tokio::test]
async fn idle_connections_make_room_and_requests_do_not() {
    let mut open = open_with(PATIENT).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(open.connect().await);
        let mut asking = open.saying(ASK).await;
        assert!(some(&mut asking).await.ends_with("fast"));
    }
    closed(&mut idle[0]).await;
    let mut slow = Vec::new();
    for _ in 0..7 {
        slow.push(open.slow().await);
    }
    // Of eight places loopback has seven.
    let mut late = open.saying(ASK).await;
    assert_eq!(some(&mut late).await.as_bytes(), FULL);
    for stream in &mut slow {
        open.finish.send(()).expect("it waits");
        assert!(some(stream).await.ends_with("slow"));
    }
    late = open.saying(ASK).await;
    assert!(some(&mut late).await.ends_with("fast"));
}

#[tokio::test]
async fn who_never_reads_is_left() {
    let open = open_with(Bounds { unread: SHORT, ..PATIENT }).await;
    let mut stream = open.saying(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(some(&mut stream).await.starts_with("HTTP/1.1 200"));
    // Whoever reads on would have more of it.
    open.connections(0).await;
    closed(&mut stream).await; // And what the system holds of it has an end.
}

#[tokio::test]
async fn heads_have_a_bound() {
    let open = open_with(PATIENT).await;
    let mut many = open.saying(b"GET / HTTP/1.1\r\n").await;
    many.write_all("a: b\r\n".repeat(HEADERS + 1).as_bytes()).await.expect("taken");
    many.write_all(b"\r\n").await.expect("taken");
    assert!(some(&mut many).await.starts_with("HTTP/1.1 431"));
    let mut long = open.saying(b"GET / HTTP/1.1\r\na: ").await;
    let sent = long.write_all(&vec![b'a'; 2 * HEAD_BYTES]).await;
    let said = some(&mut long).await;
    assert!(said.starts_with("HTTP/1.1 431") || sent.is_err(), "{said}");
    let mut odd = open.saying(b"what is this?\r\n\r\n").await;
    assert!(some(&mut odd).await.starts_with("HTTP/1.1 400"));
    closed(&mut many).await;
    closed(&mut long).await;
    closed(&mut odd).await;
    // hyper says these itself, and yet they count.
    open.connections(0).await;
    let counted = open.metrics.text();
    for status in [400, 431] {
        let answers = format!("cake_http_answers_total{{status=\"{status}\"}} ");
        assert!(counted.lines().any(|line| line.starts_with(&answers)), "{answers}: {counted}");
    }
}

#[tokio::test]
async fn a_door_that_closes_lets_answers_out_and_waits_for_nobody_idle() {
    let mut open = open_with(PATIENT).await;
    let mut idle = open.saying(ASK).await;
    assert!(some(&mut idle).await.ends_with("fast"));
    let _half = open.saying(&ASK[..20]).await;
    let mut slow = open.slow().await;
    open.tell.send_replace(Stop::Soon);
    closed(&mut idle).await;
    open.finish.send(()).expect("it waits");
    let said = some(&mut slow).await;
    assert!(said.ends_with("slow"), "{said}");
    timeout(LIMIT, open.door).await.expect("it ends").expect("no panic");
    assert!(TcpStream::connect(open.address).await.is_err());
}
