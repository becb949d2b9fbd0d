//! A connection whose other end is known.

use std::collections::BTreeSet;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsStream;
use tonic::transport::server::Connected;

use crate::Peer;

/// Bytes to and from a peer. Ends as soon as the peer is revoked.
pub struct Stream {
    inner: Inner,
    peer: Peer,
    /// Completes when the peer is revoked.
    revoked: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

enum Inner {
    Plain(Buffered),
    Tls(Box<TlsStream<Buffered>>),
}

/// A connection that asks the system for as much as is there: what is above it asks for 8 KiB, which a row of
/// hidden states is often a little longer than.
pub(crate) type Buffered = BufReader<TcpStream>;

/// What [`Buffered`] reads at once.
const READ_BYTES: usize = 64 << 10;

/// Reads ahead of what is asked for.
pub(crate) fn buffered(tcp: TcpStream) -> Buffered {
    BufReader::with_capacity(READ_BYTES, tcp)
}

impl Stream {
    pub(crate) fn plain(tcp: TcpStream) -> Self {
        Self { inner: Inner::Plain(buffered(tcp)), peer: Peer::Unknown, revoked: None }
    }

    /// After a handshake in which the peer's certificate, if it has one, was verified.
    pub(crate) fn tls(
        tls: TlsStream<Buffered>,
        list: Option<watch::Receiver<BTreeSet<String>>>,
    ) -> Self {
        let shown = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer = shown.and_then(|shown| Peer::named_by(shown)).unwrap_or(Peer::Stranger);
        let revoked = list.zip(worker_id(&peer)).map(|(mut list, id)| {
            let revoked = async move {
                // The list may be gone with the process's end only.
                let listed = list.wait_for(|list| list.contains(&id)).await.map(drop);
                if listed.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            Box::pin(revoked) as Pin<Box<dyn Future<Output = ()> + Send>>
        });
        Self { inner: Inner::Tls(Box::new(tls)), peer, revoked }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Keying material that this TLS session alone has; `None` in plain text.
    pub(crate) fn session_key(&self) -> Option<[u8; 32]> {
        const LABEL: &[u8] = b"EXPORTER-cake-join";
        let Inner::Tls(tls) = &self.inner else { return None };
        match &**tls {
            TlsStream::Client(tls) => tls.get_ref().1.export_keying_material([0; 32], LABEL, None),
            TlsStream::Server(tls) => tls.get_ref().1.export_keying_material([0; 32], LABEL, None),
        }
        .ok()
    }

    /// What the handshake agreed on to speak, if anything (ALPN).
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        match &self.inner {
            Inner::Plain(_) => None,
            Inner::Tls(tls) => tls.get_ref().1.alpn_protocol(),
        }
    }

    /// The certificates that the other end sent, its own first.
    pub(crate) fn certificates(&self) -> &[rustls::pki_types::CertificateDer<'static>] {
        match &self.inner {
            Inner::Plain(_) => &[],
            Inner::Tls(tls) => tls.get_ref().1.peer_certificates().unwrap_or_default(),
        }
    }

    /// An error once the peer is revoked; wakes the task when that happens.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(revoked) = &mut self.revoked else { return Ok(()) };
        match revoked.as_mut().poll(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(()) => {
                // A future is not asked again after its end.
                self.revoked = Some(Box::pin(std::future::ready(())));
                Err(io::Error::new(ErrorKind::ConnectionAborted, "the worker is revoked"))
            }
        }
    }
}

/// Makes a connection fit for small messages, and for waiting: the system notices within some ten seconds that
/// nobody is there any more.
pub(crate) fn tune(tcp: &TcpStream) {
    /// How long it may be silent before the system asks, and how often it asks again.
    const SILENT: Duration = Duration::from_secs(5);
    const AGAIN: Duration = Duration::from_secs(2);
    // Without it every small message waits for an acknowledgement.
    tcp.set_nodelay(true).ok();
    let keepalive = TcpKeepalive::new().with_time(SILENT).with_interval(AGAIN);
    #[cfg(not(windows))]
    let keepalive = keepalive.with_retries(3);
    SockRef::from(tcp).set_tcp_keepalive(&keepalive).ok(); // It works without.
}

fn worker_id(peer: &Peer) -> Option<String> {
    match peer {
        Peer::Worker(id) => Some(id.clone()),
        _ => None,
    }
}

impl Connected for Stream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Inner::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Inner::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bytes),
            Inner::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Plain(tcp) => tcp.is_write_vectored(),
            Inner::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Inner::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Inner::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
