//! A running worker: its store, its listener, its end.
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use cake_identity::files::replace;
use cake_identity::{Incoming, Stream, incoming, random_token};
use cake_proto::client::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};
use cake_proto::limits;
use cake_proto::wire::worker_server::WorkerServer;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tonic::transport::Server;
use tracing::{info, warn};

use crate::announce::{Announcement, announce};
use crate::config::Config;
use crate::lines::offer;
use crate::membership::{self, Entry, Membership};
use crate::reserve::Reserve;
use crate::service::Service;
use crate::store::{self, Store};

/// Flow-control windows (bytes): enough to keep a fast link full while the disk writes.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Connections that the master calls on and that wait to be served.
const LINES: usize = 4;
/// How long open calls may take to end once the worker was asked to stop.
const GRACE: Duration = Duration::from_secs(2);

/// A worker bound to its address, not yet serving.
///
/// A program may have one inside, and whoever has its address asks it what it offers:
///
/// ```
/// use cake_engine::DeviceKind;
/// use cake_identity::Security;
/// use cake_proto::client::{Tag, connect};
/// use cake_proto::wire::DescribeRequest;
/// use cake_worker::config::{Config, DeviceOffer};
/// use cake_worker::server::Worker;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = tempfile::tempdir()?;
/// let offers = vec![DeviceOffer { device: DeviceKind::Cpu, budget_bytes: 1 << 30 }];
/// let (directory, name) = (store.path().to_owned(), "attic".to_owned());
/// let config = Config::checked("127.0.0.1:0", offers, directory, None, name, 1, false)?;
/// let worker = Worker::bind(config).await?;
/// let address = worker.address().expect("it listens").to_string();
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let serving = tokio::spawn(worker.run(async { drop(stopped.await) }, async {}));
///
/// let (mut client, _) = connect(&Security::default(), &address, None, Tag::default()).await?;
/// let described = client.describe(DescribeRequest::default()).await?.into_inner();
/// assert_eq!(described.name, "attic");
///
/// drop((client, stop));
/// serving.await??;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    service: Service,
    listener: Option<TcpListener>,
    address: Option<SocketAddr>,
    worker_id: String,
    membership: Membership,
    reserve: Reserve,
    /// Whether it looks for its master on the network, and is found there.
    discover: bool,
}

/// Why a worker cannot start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A setting cannot be used after all.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The worker's identity cannot be kept.
    #[error("cannot keep the worker's id in {path}: {source}")]
    Identity {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It cannot join, or what it once joined cannot be used.
    #[error(transparent)]
    Membership(#[from] cake_identity::Error),
    /// Serving failed.
    #[error("the server stopped: {0}")]
    Serve(#[from] tonic::transport::Error),
}

impl Worker {
    /// Opens the store and binds the listener.
    ///
    /// # Errors
    /// [`Error`], one sentence each.
    pub async fn bind(mut config: Config) -> Result<Self, Error> {
        let store = Store::open(&config.store, config.store_limit)?;
        let mut worker_id = identity(&config.store, &config.name)?;
        cake_stage::recall_tuning(&config.store, &cake_platform::processor());
        let listener = match config.listen {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let (listener, address) = listener.unzip();
        let local = address.is_some_and(|address| address.ip().is_loopback());
        let discover = config.discovery && !local;
        let membership = match config.insecure {
            true => Membership::insecure(),
            false => {
                let (store, name, worker_id) = (&config.store, &config.name, &worker_id);
                let (master, token) = (config.master.as_deref(), config.token.as_ref());
                let listen = address;
                let entry = Entry { store, master, token, name, worker_id, listen, discover };
                Membership::enter(entry).await?
            }
        };
        if !membership.security().is_mutual() && !config.insecure {
            let address = address.ok_or(crate::config::Error::NoListener)?;
            if !local {
                return Err(crate::config::Error::NotLoopback { address }.into());
            }
        }
        if let Some(certified) = membership.worker_id() {
            certified.clone_into(&mut worker_id);
        }
        if let Some(name) = membership.name() {
            config.name = name; // Another member may have the one that was asked for.
        }
        let reserve = config.reserve;
        let service = Service::new(config, worker_id.clone(), store, membership.clone());
        Ok(Self { service, listener, address, worker_id, membership, reserve, discover })
    }

    /// Where it listens, if it does, with the port that the system chose.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The id that stays with the store.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Whose worker it is.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Serves until `shutdown` completes, then lets its master move its layers first, until `hurry`
    /// completes, and open calls end for a short while.
    ///
    /// # Errors
    /// [`Error::Serve`] if the listener breaks.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()>,
        hurry: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let (leaving, watched, reserve) =
            (self.service.clone(), self.service.clone(), self.reserve);
        let ending = self.service.clone();
        let service = WorkerServer::new(self.service)
            .max_decoding_message_size(limits::MESSAGE_BYTES)
            .max_encoding_message_size(limits::MESSAGE_BYTES);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let Self { listener, address: listen, membership, discover, .. } = self;
        let security = membership.security().clone();
        let (called, lines) = mpsc::channel(LINES);
        let listener = listener.map(|listener| incoming(listener, security.clone()));
        // End with this function, however that ends.
        let mut watching = tokio::task::JoinSet::new();
        watching.spawn(async move { watched.keep(reserve).await });
        let mut announcing = tokio::task::JoinSet::new();
        let (lines_to, master) = watch::channel(None);
        announcing.spawn(offer(security, master, called));
        announcing.spawn(announce(Announcement { membership, listen, discover, lines_to }));
        let serve = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(limits::FRAME_BYTES as u32)
            // A master that gives no sign of life is gone, and its lease with it.
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .add_service(service)
            .serve_with_incoming_shutdown(connections(listener, lines), async {
                stopped.await.ok();
            });
        tokio::pin!(serve);
        tokio::select! {
            ended = &mut serve => return Ok(ended?),
            () = shutdown => info!("stopping"),
        }
        watching.shutdown().await; // Nothing makes it stay now.
        tokio::select! {
            ended = &mut serve => return Ok(ended?),
            () = leaving.leave() => {}
            () = hurry => {}
        }
        announcing.abort_all();
        stop.send(()).ok();
        if tokio::time::timeout(GRACE, &mut serve).await.is_err() {
            info!("closing connections that a master still holds");
        }
        // A step under way may take longer than anybody wants to wait for the process to end.
        let unload = tokio::task::spawn_blocking(move || ending.clear());
        tokio::time::timeout(GRACE, unload).await.ok();
        Ok(())
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Those that others opened, and those that this worker opened and its master calls on. Never ends.
fn connections(
    mut listener: Option<Incoming>,
    mut lines: mpsc::Receiver<Stream>,
) -> impl futures_util::Stream<Item = std::io::Result<Stream>> {
    futures_util::stream::poll_fn(move |cx| {
        let accepted = listener.as_mut().map(|listener| listener.poll_next(cx));
        if let Some(Poll::Ready(Some(stream))) = accepted {
            return Poll::Ready(Some(Ok(stream)));
        }
        match lines.poll_recv(cx) {
            Poll::Ready(Some(stream)) => Poll::Ready(Some(Ok(stream))),
            _ => Poll::Pending, // One that is no member opens none.
        }
    })
}

/// The file beside the store that has this worker's id, and in a second line its name.
const IDENTITY: &str = "worker-id";

/// What the worker with this store is called, if that is known.
pub fn kept_name(store: &Path) -> Option<String> {
    let of_file = || {
        let text = std::fs::read_to_string(store.join(IDENTITY)).ok()?;
        text.lines().nth(1).filter(|name| !name.is_empty()).map(str::to_owned)
    };
    membership::kept_name(store).or_else(of_file)
}

/// The id kept beside the store, made on first use; the name is kept there, too.
fn identity(store: &Path, name: &str) -> Result<String, Error> {
    let path = store.join(IDENTITY);
    let failed = |source| Error::Identity { path: path.display().to_string(), source };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.map_err(failed)?,
    };
    let kept = text.lines().next().map(str::trim).filter(|id| id.len() == 32);
    let worker_id = kept.map_or_else(random_token, str::to_owned);
    let content = format!("{worker_id}\n{name}\n");
    if content != text
        && let Err(error) = replace(&path, content.as_bytes())
    {
        if kept.is_none() {
            return Err(failed(error)); // It would be another worker after each start.
        }
        warn!(%error, "this worker's name will not be remembered");
    }
    Ok(worker_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_and_the_name_stay_with_the_store() {
        let store = tempfile::tempdir().expect("a folder");
        assert_eq!(kept_name(store.path()), None);
        let id = identity(store.path(), "tablet").expect("made");
        assert_eq!(kept_name(store.path()).as_deref(), Some("tablet"));
        assert_eq!(identity(store.path(), "phone").expect("there"), id);
        assert_eq!(kept_name(store.path()).as_deref(), Some("phone"));
        // As it was before names were kept.
        std::fs::write(store.path().join(IDENTITY), &id).expect("written");
        assert_eq!(kept_name(store.path()), None);
        assert_eq!(identity(store.path(), "tablet").expect("there"), id);
        std::fs::write(store.path().join(IDENTITY), "no id").expect("written");
        assert_ne!(identity(store.path(), "tablet").expect("made"), id);
    }
}
