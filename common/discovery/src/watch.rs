//! Saying where one listens, and hearing of others, for as long as anybody wants to know.

use std::mem::Discriminant;
use std::net::SocketAddr;
use std::time::Duration;

use mdns_sd::{DaemonEvent, IfKind, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{debug, info, warn};

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
/// The thread keeps the name of every service that it ever found, until it ends: after so many another one begins.
const NAMES: u32 = 50_000;
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
    #[error("more than {RECORDS} records were heard")]
    Flood,
    /// More is said of this cluster than anybody can go and see.
    #[error("of more than {NEWS} devices it was heard that nobody has looked for yet")]
    Crowd,
}

/// Says what is known `about` this process, and returns the news of others, until they are dropped. Runs on
/// the current runtime; where it cannot be done, nothing is ever heard.
pub fn look_out(about: About) -> mpsc::Receiver<News> {
    let (tell, news) = mpsc::channel(NEWS);
    tokio::spawn(async move {
        let mut told = Told::default();
        while !tell.is_closed() {
            let error = match session(&about, &tell).await {
                Ok(End::Unwanted) => return,
                Ok(End::Full) => {
                    debug!("many devices were heard of; beginning anew");
                    continue;
                }
                Err(error) => error,
            };
            if told.is_new(&error) {
                warn!(%error, "devices of this network are not found by themselves");
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = tell.closed() => {}
            }
        }
    });
    news
}

/// What was said of why it broke: each kind once, however often somebody can make that happen.
#[derive(Default)]
struct Told(Vec<Discriminant<Error>>);

impl Told {
    fn is_new(&mut self, error: &Error) -> bool {
        let kind = std::mem::discriminant(error);
        let new = !self.0.contains(&kind);
        if new {
            self.0.push(kind);
        }
        new
    }
}

/// How looking out ends while nothing is wrong.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Nobody wants the news any more.
    Unwanted,
    /// The thread keeps as many names as it may.
    Full,
}

/// What was heard in a session.
#[derive(Debug, Default)]
struct Heard {
    /// Events since it was looked for records.
    events: u32,
    /// Services that were found, some of them more than once.
    names: u32,
}

impl Heard {
    fn count(&mut self, event: &ServiceEvent) {
        self.events += 1;
        self.names += u32::from(matches!(event, ServiceEvent::ServiceResolved(_)));
    }

    /// Whether it is time to look for records; the count begins anew then.
    fn is_much(&mut self) -> bool {
        let much = self.events >= MUCH;
        if much {
            self.events = 0;
        }
        much
    }

    fn is_full(&self) -> bool {
        self.names >= NAMES
    }
}

/// A thread that speaks multicast DNS; ends when dropped.
struct Daemon(ServiceDaemon);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.shutdown().ok(); // It has ended already, perhaps.
    }
}

/// Until nobody wants the news any more, the thread knows too many names, or something breaks.
async fn session(about: &About, tell: &mpsc::Sender<News>) -> Result<End, Error> {
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
    let (mut troubled, mut heard) = (false, Heard::default());
    loop {
        let news = tokio::select! {
            () = tell.closed() => return Ok(End::Unwanted),
            event = services.recv_async() => {
                let event = event.map_err(|_| Error::Stopped)?;
                heard.count(&event);
                match event {
                    ServiceEvent::ServiceResolved(service) => {
                        Sighting::of(&service, about.role.other(), &about.cluster).map(News::Seen)
                    }
                    _ => None,
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
                heard.events = MUCH;
                None
            }
        };
        if heard.is_much() && records(daemon).await? > RECORDS {
            return Err(Error::Flood);
        }
        // Waiting here would leave the thread alone with whoever floods it.
        if let Some(news) = news
            && let Err(TrySendError::Full(_)) = tell.try_send(news)
        {
            return Err(Error::Crowd);
        }
        if heard.is_full() {
            return Ok(End::Full);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_the_thread_keeps_counts_until_there_are_too_many() {
        let words = [(ID, "ab")];
        let found = ServiceInfo::new(SERVICE, "x", "x.local.", "10.0.0.2", 7, &words[..]);
        let found = found.expect("a service").as_resolved_service();
        let found = ServiceEvent::ServiceResolved(Box::new(found));
        let gone = ServiceEvent::ServiceRemoved(SERVICE.to_owned(), "x".to_owned());
        let mut heard = Heard::default();
        let mut looks = 0;
        for _ in 1..NAMES {
            // That it is gone from the records does not take its name away.
            for event in [&found, &gone] {
                heard.count(event);
                looks += u32::from(heard.is_much());
            }
            assert!(!heard.is_full());
        }
        heard.count(&found);
        assert!(heard.is_full());
        assert_eq!(looks, 2 * (NAMES - 1) / MUCH, "as often as before it is looked for records");
    }

    #[test]
    fn of_each_kind_of_trouble_is_told_once_whoever_brings_it_about() {
        let mut told = Told::default();
        for round in 0..3 {
            for error in [Error::Flood, Error::Crowd, Error::Stopped] {
                assert_eq!(told.is_new(&error), round == 0, "{error}");
            }
        }
    }
}
