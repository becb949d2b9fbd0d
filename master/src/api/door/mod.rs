//! The door for clients: takes their connections, as many as there is room for, and hands on what they ask.
//!
//! hyper speaks HTTP; what is decided here is how long it may take and how much of it there may be. `places` knows who
//! is inside and who leaves for whom, `wire` what a connection that stalls costs, `descriptors` how many files there
//! are for connections.
//!
//! Invariants:
//! - No client, however many connections it opens, takes a file that the cluster needs.
//! - A connection without a request has an end in time; one with a request ends when nobody reads its answer.
//! - Whoever only watches, which has no end, takes no place from a request.
//! - Heads are bounded here, bodies where they are read (`super::bodies`).

mod bounds;
mod descriptors;
mod places;
mod wire;

use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Stop;
use crate::metrics::{Ended, Http};
use crate::request_id::RequestId;
pub use bounds::Bounds;
pub(super) use places::Place;
use places::{Guest, Places};
use wire::Wire;

/// Longest head of a request: its line and all of its headers.
const HEAD_BYTES: usize = 32 << 10;
/// Most headers of a request.
const HEADERS: usize = 100;
/// Most bytes of a connection that wait between the program and the system, each way.
const BUFFER_BYTES: usize = 64 << 10;
/// How often a connection is looked at, to see whether it waits for too long.
const LOOK: Duration = Duration::from_secs(1);
/// What to wait after the system refused to give a connection, as it does when there are too many files.
const PAUSE: Duration = Duration::from_millis(100);
/// How often that is told.
const TELL: Duration = Duration::from_secs(60);
/// How long last words may take to leave once answers have been ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Takes connections from all of `listeners` until `stop` says that it is over, then waits for the answers that have begun,
/// until it says that they end now. What has no place hears what `full` makes, a whole answer.
pub(super) async fn open<A, F>(
    listeners: Vec<TcpListener>,
    bounds: Bounds,
    counts: Http,
    mut stop: watch::Receiver<Stop>,
    full: impl Fn() -> Vec<u8> + Send + 'static,
    answer: A,
) where
    A: Fn(Request<Incoming>, Arc<Place>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let places = Places::new(bounds.connections);
    let files = Arc::new(Semaphore::new(bounds.connections.max(1)));
    let mut connections = JoinSet::new();
    let mut told: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listeners) => accepted,
            Some(_) = connections.join_next() => {
                counts.connected(places.count());
                continue;
            }
            _ = stop.wait_for(|stop| *stop != Stop::No) => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if is_of_one_connection(&error) => continue,
            Err(error) => {
                counts.ended(Ended::Files);
                if told.is_none_or(|told| told.elapsed() > TELL) {
                    warn!(%error, connections = places.count(), "cannot take a client's connection");
                    told = Some(Instant::now());
                }
                places.make_room(Instant::now());
                sleep(PAUSE).await;
                continue;
            }
        };
        let Some((guest, made_room)) = places.admit(from.ip(), Instant::now()) else {
            counts.ended(Ended::Full);
            refuse(stream, &full()).ok(); // It may be gone already.
            continue;
        };
        if made_room {
            counts.ended(Ended::Room);
        }
        counts.connected(places.count());
        // One that has left for it closes its file first.
        let file = files.clone().acquire_owned().await.expect("never closed");
        let visit = Visit { bounds, counts: counts.clone(), stop: stop.clone(), guest, file };
        connections.spawn(visit.serve(stream, from, answer.clone()));
    }
    drop(listeners);
    let all = async { while connections.join_next().await.is_some() {} };
    let mut all = pin!(all);
    tokio::select! {
        () = &mut all => return,
        _ = stop.wait_for(|stop| *stop == Stop::Now) => {}
    }
    // What has not left by then sees its connection closed.
    timeout(LAST_WORDS, all).await.ok();
}

/// The next connection that comes to one of them; whoever no longer waits for it loses none.
async fn accept(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|cx| {
        let mut accepted = listeners.iter().map(|listener| listener.poll_accept(cx));
        accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// Whether the system means the connection that it would have given, and others may be well.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Says that there is no room, as far as that goes without waiting.
fn refuse(stream: TcpStream, full: &[u8]) -> io::Result<()> {
    let mut stream = stream.into_std()?; // Does not wait for the system either.
    // Reading what came spares the client a reset, with which the answer could be lost.
    let _nobody_reads_it = stream.read(&mut [0; 8192]);
    stream.write_all(full)
}

/// One connection and what belongs to it.
struct Visit {
    bounds: Bounds,
    counts: Http,
    stop: watch::Receiver<Stop>,
    guest: Guest,
    file: OwnedSemaphorePermit,
}

impl Visit {
    /// Answers what comes over it, until it ends.
    async fn serve<A, F>(self, stream: TcpStream, from: SocketAddr, answer: A)
    where
        A: Fn(Request<Incoming>, Arc<Place>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let Self { bounds, counts, mut stop, guest, file } = self;
        // A token's piece leaves at once.
        stream.set_nodelay(true).ok();
        let place = guest.place.clone();
        let service = service_fn(|request| {
            let answer = place.begins().then(|| answer(request, place.clone()));
            async move {
                match answer {
                    Some(answer) => Ok(answer.await),
                    // Its place is another one's: the connection ends.
                    None => Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
                }
            }
        });
        let wire = TokioIo::new(Wire::new(stream, place.clone(), bounds.unread));
        let mut http = http1::Builder::new();
        http.max_headers(HEADERS).max_header_size(HEAD_BYTES).max_buf_size(BUFFER_BYTES);
        // How long a head may take is looked at below, where an idle connection is told from one that stalls.
        http.header_read_timeout(None);
        {
            let mut connection = pin!(http.serve_connection(wire, service));
            let mut ending = false;
            loop {
                let now = Instant::now();
                let until = place.until(&bounds, ending);
                if until.is_some_and(|until| until <= now) {
                    if !ending {
                        counts.ended(Ended::Late);
                    }
                    break;
                }
                let look = until.map_or(now + LOOK, |until| until.min(now + LOOK));
                tokio::select! {
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            debug!(%from, %error, "a client's connection ended");
                            answered_by_hyper(&error, &counts);
                        }
                        break;
                    }
                    () = place.gone() => break,
                    () = sleep_until(look) => {}
                    _ = stop.wait_for(|stop| *stop != Stop::No), if !ending => {
                        ending = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        }
        // The connection is closed: its file and its place are free.
        drop(file);
        drop(guest);
    }
}

/// Counts and logs what hyper itself answers to what is no request, or to a head that is too long. Such an answer has
/// no id; its line in the log has one, as all have.
fn answered_by_hyper(error: &hyper::Error, counts: &Http) {
    // It answers nothing to HTTP/2. A path that is too long for it is in a head that is too long.
    let status = if error.is_parse_too_large() {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    } else if error.is_parse() && !error.is_parse_version_h2() {
        StatusCode::BAD_REQUEST
    } else {
        return;
    };
    let status = status.as_u16();
    counts.answered(status);
    info!(status, request_id = %RequestId::made(), %error, "request");
}

#[cfg(test)]
mod tests;
