//! Connections that workers open for their master to call on, as one does to which nobody can connect.
//!
//! ```text
//! worker                                              master
//!   ── TLS, both with certificates, protocol LINE ────▶  keeps it
//!                          …
//!   ◀───────────────────── TAKE ────────────────────────  wants to call
//!   ── HERE ───────────────────────────────────────────▶
//!   ◀───────────────────── calls ───────────────────────
//! ```
//!
//! A line that is waiting says nothing: one that does, or ends, or whose worker is revoked, is dropped.

mod opened;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{oneshot, watch};

pub use opened::{Line, open};

use crate::{Peer, Stream};

/// What a worker that offers a line says in its handshake (ALPN).
pub(crate) const PROTOCOL: &[u8] = b"cake-line/1";
/// What addresses begin with that stand for lines.
const PREFIX: &str = "line:";
/// Most lines of one worker that wait; the oldest goes when one more comes.
const WAITING: usize = 4;
/// The master wants to call.
const TAKE: u8 = 1;
/// The worker is there.
const HERE: u8 = 2;
/// How long a worker may take to say so: it is not there any more if that takes longer.
const TURN: Duration = Duration::from_secs(2);
/// How long a worker may take to open the next line when none is waiting: where there is nobody, that has to be
/// known before those who ask whether it is still there lose patience.
const NEXT: Duration = Duration::from_millis(1500);
/// The address of a worker that is reached over its lines.
pub fn address(worker_id: &str) -> String {
    format!("{PREFIX}{worker_id}")
}

/// Which worker is reached over its lines at this address, if that is what it means.
pub fn worker_at(address: &str) -> Option<&str> {
    address.strip_prefix(PREFIX)
}

/// Lines that wait for this process to call. A handle.
#[derive(Clone, Default)]
pub struct Lines(Arc<Shared>);

struct Shared {
    waiting: Mutex<HashMap<String, Vec<Waiting>>>,
    /// How many ever came.
    came: watch::Sender<u64>,
}

/// Whoever takes the line asks its task for it. Dropping this closes the line.
struct Waiting(oneshot::Sender<oneshot::Sender<Stream>>);

impl Lines {
    /// Keeps a line until it is taken or ends, and returns whose it is: no one's but a worker's.
    pub(crate) fn put(&self, mut stream: Stream) -> Option<String> {
        let Peer::Worker(worker_id) = stream.peer().clone() else { return None };
        let (ask, asked) = oneshot::channel::<oneshot::Sender<Stream>>();
        {
            let mut all = self.lock();
            all.retain(|_, lines| {
                lines.retain(Waiting::is_open);
                !lines.is_empty()
            });
            let lines = all.entry(worker_id.clone()).or_default();
            lines.push(Waiting(ask));
            lines.drain(..lines.len().saturating_sub(WAITING));
        }
        // Ends with the line, or when that is not kept any more.
        tokio::spawn(async move {
            tokio::select! {
                _ = stream.read_u8() => {}
                taker = asked => if let Ok(taker) = taker {
                    taker.send(stream).ok(); // Whoever took it may have gone.
                }
            }
        });
        self.0.came.send_modify(|came| *came += 1);
        Some(worker_id)
    }

    /// Whether a line of this worker is waiting.
    pub fn has(&self, worker_id: &str) -> bool {
        self.lock().get(worker_id).is_some_and(|lines| lines.iter().any(Waiting::is_open))
    }

    /// A line of this worker, at whose other end it is; waits a little while for one. Whoever calls has a deadline.
    pub(crate) async fn take(&self, worker_id: &str) -> io::Result<Stream> {
        let mut came = self.0.came.subscribe();
        let nobody = || {
            let said = "it has opened no connection for its master to call on";
            io::Error::new(io::ErrorKind::TimedOut, said)
        };
        loop {
            while let Some(waiting) = self.newest(worker_id) {
                let turn = tokio::time::timeout(TURN, waiting.take());
                if let Ok(Some(stream)) = turn.await {
                    return Ok(stream);
                }
            }
            let next = async { while !self.has(worker_id) && came.changed().await.is_ok() {} };
            tokio::time::timeout(NEXT, next).await.map_err(|_| nobody())?;
        }
    }

    /// The line that came last: the likeliest to be one still.
    fn newest(&self, worker_id: &str) -> Option<Waiting> {
        self.lock().get_mut(worker_id)?.pop()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Waiting>>> {
        // Only whole entries come and go: a poisoned lock still holds a usable map.
        self.0.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Default for Shared {
    fn default() -> Self {
        Self { waiting: Mutex::default(), came: watch::Sender::new(0) }
    }
}

impl Waiting {
    fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// The line, if its worker says that it is there.
    async fn take(self) -> Option<Stream> {
        let (taker, taken) = oneshot::channel();
        self.0.send(taker).ok()?;
        let mut stream = taken.await.ok()?;
        stream.write_u8(TAKE).await.ok()?;
        stream.flush().await.ok()?;
        (stream.read_u8().await.ok()? == HERE).then_some(stream)
    }
}
