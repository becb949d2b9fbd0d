//! The door that workers join at, and the news and connections that come through it.
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use cake_discovery::{About, Role, look_out};
use cake_identity::join::{self, Event as Visited};
use tokio::net::TcpListener;
use tokio::task::{JoinSet, block_in_place};

use super::Error;
use super::event::{Event, Observer};
use crate::cluster::found;
use crate::membership::{DOOR_PORT, Membership};
use crate::sign::Sign;

/// The id of a cluster's master on the network: it is the only one.
const MASTER: &str = "master";

/// An open door; closed when dropped.
#[derive(Debug)]
pub(crate) struct Door {
    /// End with the door.
    _tasks: JoinSet<()>,
    /// Tells other processes of this master.
    _sign: Option<Sign>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it is found on the network, and members are.
    pub discovers: bool,
}

/// The address of the door unless told otherwise.
pub(crate) fn default_address() -> String {
    format!("0.0.0.0:{DOOR_PORT}")
}

/// Opens the door at `asked`, or at the usual address, and tells the network where it is if `discover` says so
/// and others can reach it; `None` if there is no authority, or if another process of this master has it open
/// at the usual address.
///
/// # Errors
/// [`Error::Listen`] if the address asked for cannot be had.
pub(crate) async fn open(
    membership: &Membership,
    asked: Option<&str>,
    discover: bool,
    observer: Arc<dyn Observer>,
) -> Result<Option<Door>, Error> {
    let Some(authority) = membership.authority() else {
        return match asked {
            None => Ok(None),
            Some(_) => Err(Membership::missing().into()),
        };
    };
    let usual = default_address();
    let address = asked.unwrap_or(&usual);
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let listener = match TcpListener::bind(address).await {
        Err(error) if asked.is_none() => {
            observer.tell(&Event::NoDoor(&failed(error)));
            return Ok(None);
        }
        bound => bound.map_err(failed)?,
    };
    let address = listener.local_addr().map_err(failed)?;
    let mut events = join::door(listener, authority.clone(), membership.security().clone())
        .map_err(crate::membership::Error::from)?;
    let mut tasks = JoinSet::new();
    let host = membership.clone();
    tasks.spawn(async move {
        while let Some(visit) = events.recv().await {
            tell(&visit.event, &*observer);
            let (Visited::Joined { worker_id, .. }
            | Visited::Hello { worker_id, .. }
            | Visited::Line { worker_id }) = &visit.event;
            host.seen(vec![(worker_id.clone(), None)]).await;
            // Whoever looks for workers takes lines, so that more come.
            if !matches!(visit.event, Visited::Line { .. }) {
                host.news.notify_one();
            }
            drop(visit); // Whoever closes the door waits until what it says is noted.
        }
    });
    let discovers = discover && !address.ip().is_loopback();
    if discovers {
        let (cluster, id) = (authority.cluster(), MASTER.to_owned());
        let about = About { role: Role::Master, cluster, id, listen: Some(address) };
        tasks.spawn(found::follow(membership.clone(), look_out(about)));
    }
    let sign = block_in_place(|| membership.put_up_door(address));
    Ok(Some(Door { _tasks: tasks, _sign: sign, address, discovers }))
}

fn tell(visit: &Visited, observer: &dyn Observer) {
    match visit {
        Visited::Joined { worker_id, name, address } => {
            observer.tell(&Event::Joined { name, address, worker_id });
        }
        Visited::Hello { worker_id, address } => {
            tracing::info!(worker_id, address, "a member says where it is");
        }
        Visited::Line { worker_id } => tracing::debug!(worker_id, "a member opened a connection"),
    }
}

/// Where other devices find this one, most likely.
pub(crate) fn own_address() -> Option<IpAddr> {
    // Nothing is sent: the system only says which address it would send from.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // For documentation, by RFC 5737: nobody has it.
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified()).then_some(own)
}
