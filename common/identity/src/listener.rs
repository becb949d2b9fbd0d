//! Taking connections from whoever comes: what an unknown peer can occupy is bounded.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::stream::tune;
use crate::{Refusal, Security, Stream};

/// How long a peer may take until it is known.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Most peers that are not known yet. The oldest goes when one more comes: whoever has a certificate shows
/// it within milliseconds, whoever has none waits in vain.
const UNKNOWN: usize = 128;
/// Peers that are known and wait to be served.
const QUEUED: usize = 16;
/// What to wait after the system refused to give a connection, as it does when there are too many files.
const PAUSE: Duration = Duration::from_millis(50);
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// Connections of known peers, as they come.
pub struct Incoming(mpsc::Receiver<Stream>);

impl Incoming {
    /// The next one.
    pub async fn next(&mut self) -> Option<Stream> {
        self.0.recv().await
    }

    /// The same, for a stream of several sources.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Stream>> {
        self.0.poll_recv(cx)
    }
}

/// Takes connections as `security` demands, until the result is dropped. Runs on the current runtime.
pub fn incoming(listener: TcpListener, security: Security) -> Incoming {
    let (known, incoming) = mpsc::channel(QUEUED);
    let plain = !security.is_mutual();
    let greet = move |tcp| {
        let security = security.clone();
        async move { security.accept(tcp).await }
    };
    tokio::spawn(take_all(listener, plain, greet, known));
    Incoming(incoming)
}

/// Greets everybody who connects, and sends on what comes of it; ends when nobody wants it any more.
pub(crate) async fn take_all<T, F>(
    listener: TcpListener,
    plain: bool,
    greet: impl Fn(TcpStream) -> F + Clone + Send + Sync + 'static,
    known: mpsc::Sender<T>,
) where
    T: Send + 'static,
    F: Future<Output = Result<T, Refusal>> + Send + 'static,
{
    let mut unknown = VecDeque::<AbortHandle>::new();
    let refused = Arc::new(Mutex::new(HashSet::new()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = known.closed() => break,
        };
        let Ok((tcp, from)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        tune(&tcp);
        unknown.retain(|task| !task.is_finished());
        if unknown.len() == UNKNOWN
            && let Some(oldest) = unknown.pop_front()
        {
            oldest.abort();
        }
        let (known, refused, greeting) = (known.clone(), refused.clone(), greet.clone());
        let task = tokio::spawn(async move {
            let meet = async {
                speaks(&tcp, plain).await?;
                greeting(tcp).await
            };
            let met = tokio::time::timeout(HANDSHAKE, meet).await;
            match met.unwrap_or(Err(Refusal::Silent)) {
                Ok(peer) => drop(known.send(peer).await),
                Err(refusal) => {
                    let mut refused = refused.lock().unwrap_or_else(|error| error.into_inner());
                    refusal.log(from, &mut refused);
                }
            }
        });
        unknown.push_back(task.abort_handle());
    }
    unknown.into_iter().for_each(|task| task.abort());
}

/// Waits until the peer has said something; refuses plain text unless it is `plain` that is spoken here.
async fn speaks(tcp: &TcpStream, plain: bool) -> Result<(), Refusal> {
    let mut first = [0];
    match tcp.peek(&mut first).await.map_err(Refusal::Handshake)? {
        0 => Err(Refusal::Silent),
        _ if !plain && first[0] != TLS_HANDSHAKE => Err(Refusal::PlainText),
        _ => Ok(()),
    }
}
