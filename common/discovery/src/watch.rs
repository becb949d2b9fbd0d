//! Saying where one listens, and hearing of others, for as long as anybody wants to know.

use std::net::SocketAddr;
use std::time::Duration;

use mdns_sd::{DaemonEvent, IfKind, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{info, warn};

use crate::said::{CLUSTER, ID, ROLE, Role, Sighting};

/// The kind of service, one for both roles.
const SERVICE: &str = "_cake._tcp.local.";
/// News that may wait for whoever wants them: those of more devices than a home has.
const NEWS: usize = 1024;
/// How often it is looked for networks that came, and for records that are too many.
const LOOK: Duration = Duration::from_secs(1);
/// More records than this are no home's: all of them are forgotten.
const RECORDS: i64 = 4096;
/// After so many events it is looked for records at once.
const MUCH: u32 = 256;
/// Pause before it begins anew after it broke.
const PAUSE: Duration = Duration::from_secs(10);

/// What is said of this process.
#[derive(Clone, Debug)]
pub struct About {
    /// What it is.
    pub role: Role,
    /// Name of its cluster: others are not listened to.
    pub cluster: String,
    /// Who it is; nobody else in the cluster has it.
    pub id: String,
    /// Where it listens, if it does: at an unspecified address all that this device has are said.
    pub listen: Option<SocketAddr>,
}

/// What was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Somebody of the other role says where it is.
    Seen(Sighting),
    /// This device has an address that it did not have before.
    Moved,
}

/// Why looking out came to an end.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The library or the system does not do it.
    #[error(transparent)]
    Service(#[from] mdns_sd::Error),
    /// Its thread has ended.
    #[error("it stopped")]
    Stopped,
    /// Somebody says too much.
    #[error("{records} records were heard, expected at most {RECORDS}")]
    Flood { records: i64 },
    /// More is said of this cluster than anybody can go and see.
    #[error("of more than {NEWS} devices it was heard that nobody has looked for yet")]
    Crowd,
}

/// Says what is known `about` this process, and returns the news of others, until they are dropped. Runs on
/// the current runtime; where it cannot be done, nothing is ever heard.
pub fn look_out(about: About) -> mpsc::Receiver<News> {
    let (tell, news) = mpsc::channel(NEWS);
    tokio::spawn(async move {
        let mut told = String::new();
        while !tell.is_closed() {
            let Err(error) = session(&about, &tell).await else { return };
            let why = error.to_string();
            if why != told {
                warn!(%error, "devices of this network are not found by themselves");
                told = why;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = tell.closed() => {}
            }
        }
    });
    news
}

/// A thread that speaks multicast DNS; ends when dropped.
struct Daemon(ServiceDaemon);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.shutdown().ok(); // It has ended already, perhaps.
    }
}

/// Until nobody wants the news any more, or something breaks.
async fn session(about: &About, tell: &mpsc::Sender<News>) -> Result<(), Error> {
    let daemon = Daemon(ServiceDaemon::new()?);
    let daemon = &daemon.0;
    let events = daemon.monitor()?;
    daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
    daemon.set_ip_check_interval(LOOK.as_secs() as u32)?;
    if let Some(listen) = about.listen {
        daemon.register(service(about, listen)?)?;
    }
    let services = daemon.browse(SERVICE)?;
    let mut look = tokio::time::interval(LOOK);
    let (mut troubled, mut heard) = (false, 0);
    loop {
        let news = tokio::select! {
            () = tell.closed() => return Ok(()),
            event = services.recv_async() => {
                heard += 1;
                match event {
                    Ok(ServiceEvent::ServiceResolved(service)) => {
                        Sighting::of(&service, about.role.other(), &about.cluster).map(News::Seen)
                    }
                    Ok(_) => None,
                    Err(_) => return Err(Error::Stopped),
                }
            }
            event = events.recv_async() => match event {
                Ok(DaemonEvent::IpAdd(_)) => Some(News::Moved),
                Ok(DaemonEvent::Error(error)) => {
                    if !std::mem::replace(&mut troubled, true) {
                        info!(%error, "a part of this network cannot be searched for devices");
                    }
                    None
                }
                Ok(_) => None,
                Err(_) => return Err(Error::Stopped),
            },
            _ = look.tick() => {
                heard = MUCH;
                None
            }
        };
        if heard >= MUCH {
            heard = 0;
            let records = records(daemon).await?;
            if records > RECORDS {
                return Err(Error::Flood { records });
            }
        }
        // Waiting here would leave the thread alone with whoever floods it.
        if let Some(news) = news
            && let Err(TrySendError::Full(_)) = tell.try_send(news)
        {
            return Err(Error::Crowd);
        }
    }
}

/// What is said: names that only this one has, so that what it says later replaces what it said before.
fn service(about: &About, listen: SocketAddr) -> Result<ServiceInfo, mdns_sd::Error> {
    let About { role, cluster, id, .. } = about;
    let name = format!("{cluster}-{id}");
    let host = format!("cake-{name}.local.");
    let words = [(ROLE, role.word()), (CLUSTER, cluster), (ID, id)];
    match listen.ip() {
        ip if ip.is_unspecified() => {
            let all = ServiceInfo::new(SERVICE, &name, &host, "", listen.port(), &words[..])?;
            Ok(all.enable_addr_auto())
        }
        ip => ServiceInfo::new(SERVICE, &name, &host, ip, listen.port(), &words[..]),
    }
}

/// How many records the thread keeps of what others said.
async fn records(daemon: &ServiceDaemon) -> Result<i64, Error> {
    let counted = daemon.get_metrics()?.recv_async().await.map_err(|_| Error::Stopped)?;
    Ok(counted.iter().filter(|(name, _)| name.starts_with("cached-")).map(|(_, count)| count).sum())
}
