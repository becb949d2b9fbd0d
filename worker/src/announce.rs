//! Tells the master where this worker is, wherever either of them has gone.
use std::net::SocketAddr;
use std::time::Duration;

use cake_discovery::{About, News, Role, Sighting, look_out};
use cake_identity::{Error, join};
use futures_util::future::select_ok;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::membership::Membership;

/// How often the master is told where this worker listens: soon enough after either has moved.
const HELLO: Duration = Duration::from_secs(30);
/// How often it is tried while the master does not answer, at first.
const RETRY: Duration = Duration::from_secs(1);
/// Most places beside the last one where the master is said to be. Who says so is not known, and each is gone to.
const PLACES: usize = 4;
/// Least time between two tries, however much is heard.
const REST: Duration = Duration::from_millis(250);

/// What is told.
#[derive(Debug)]
pub(crate) struct Announcement {
    /// Whose worker this is.
    pub(crate) membership: Membership,
    /// Where it listens, if it does.
    pub(crate) listen: Option<SocketAddr>,
    /// Whether the network is told, too, and listened to.
    pub(crate) discover: bool,
    /// Where the master is, while it cannot connect to this worker.
    pub(crate) lines_to: watch::Sender<Option<String>>,
}

/// Tells it again and again; ends at once if this worker is no member.
pub(crate) async fn announce(announcement: Announcement) {
    let Announcement { membership, listen, discover, lines_to } = announcement;
    let (Some(cluster), Some(worker_id)) = (membership.cluster(), membership.worker_id()) else {
        return;
    };
    let about = About { role: Role::Worker, cluster, id: worker_id.to_owned(), listen };
    let mut news = discover.then(|| look_out(about));
    let mut places = Places { last: membership.master(), seen: Vec::new() };
    let (mut retry, mut told) = (RETRY, None);
    loop {
        let said = tokio::select! {
            said = hello(&membership, places.all().collect(), listen) => said,
            () = next(&mut news, &mut places) => {
                retry = RETRY;
                rest(&mut news, &mut places).await;
                continue;
            }
        };
        let pause = match said {
            Ok((master, reachable)) => {
                let lines = (!reachable).then(|| master.clone());
                lines_to.send_if_modified(|now| {
                    if lines.is_some() && listen.is_some() && now.is_none() {
                        info!(%master, "the master cannot connect to this worker, which connects to it instead");
                    }
                    std::mem::replace(now, lines.clone()) != lines
                });
                if told.as_ref() != Some(&master) {
                    info!(%master, "the master knows where this worker is");
                    remember(&membership, &master).await;
                }
                places.last = Some(master.clone());
                (retry, told) = (RETRY, Some(master));
                HELLO
            }
            Err(error) => {
                if told.take().is_some() || retry == RETRY {
                    info!(%error, "the master does not answer; trying again");
                }
                let pause = retry;
                retry = (retry * 3 / 2).min(HELLO);
                pause
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = next(&mut news, &mut places) => retry = RETRY,
        }
        rest(&mut news, &mut places).await;
    }
}

/// Says it at all of these places, and returns the one where the master is, and whether it can connect to this
/// worker; waits while there are none.
async fn hello(
    membership: &Membership,
    places: Vec<String>,
    listen: Option<SocketAddr>,
) -> Result<(String, bool), Error> {
    if places.is_empty() {
        return std::future::pending().await;
    }
    let hellos = places.into_iter().map(|master| {
        let security = membership.security();
        Box::pin(async move {
            let reachable = join::hello(&master, security, listen, true).await?;
            Ok::<_, Error>((master, reachable))
        })
    });
    Ok(select_ok(hellos).await?.0)
}

/// Where the master may be.
struct Places {
    /// Where it was last: what others say does not displace it.
    last: Option<String>,
    /// Where it is said to be, the latest last.
    seen: Vec<String>,
}

impl Places {
    fn all(&self) -> impl Iterator<Item = String> {
        let others = self.seen.iter().filter(|seen| self.last.as_ref() != Some(seen));
        self.last.iter().chain(others).cloned()
    }

    /// Whether that is a place that was not known.
    fn add(&mut self, sighting: &Sighting) -> bool {
        let mut new = false;
        for address in sighting.addresses.iter().take(PLACES).map(SocketAddr::to_string) {
            new |= self.last.as_ref() != Some(&address) && !self.seen.contains(&address);
            self.seen.retain(|seen| *seen != address);
            self.seen.push(address);
        }
        self.seen.drain(..self.seen.len().saturating_sub(PLACES));
        new
    }
}

/// Waits until it is worth another try: the master is said to be elsewhere, or this device moved.
async fn next(news: &mut Option<mpsc::Receiver<News>>, places: &mut Places) {
    loop {
        let heard = match news {
            Some(news) => news.recv().await,
            None => std::future::pending().await,
        };
        match heard {
            Some(News::Moved) => return,
            Some(News::Seen(sighting)) if places.add(&sighting) => return,
            Some(News::Seen(_)) => {}
            None => *news = None,
        }
    }
}

/// Waits a little, whatever is heard.
async fn rest(news: &mut Option<mpsc::Receiver<News>>, places: &mut Places) {
    tokio::time::sleep(REST).await;
    while let Some(Ok(heard)) = news.as_mut().map(mpsc::Receiver::try_recv) {
        if let News::Seen(sighting) = heard {
            places.add(&sighting);
        }
    }
}

/// So that it is found again without any news.
async fn remember(membership: &Membership, master: &str) {
    let (membership, master) = (membership.clone(), master.to_owned());
    let kept = tokio::task::spawn_blocking(move || membership.remember(&master)).await;
    if let Ok(Err(error)) = kept {
        warn!(%error, "where the master is will not be remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(places: &mut Places, addresses: &[&str]) -> bool {
        let addresses = addresses.iter().map(|one| one.parse().expect("an address")).collect();
        places.add(&Sighting { id: "master".to_owned(), addresses })
    }

    #[test]
    fn whatever_is_said_the_last_place_stays_and_few_others_are_gone_to() {
        let mut places = Places { last: Some("10.0.0.1:7".to_owned()), seen: Vec::new() };
        assert!(!seen(&mut places, &["10.0.0.1:7"]), "known");
        for port in 1..1000 {
            assert!(seen(&mut places, &[&format!("10.0.0.2:{port}")]));
        }
        let all: Vec<String> = places.all().collect();
        assert_eq!(all[0], "10.0.0.1:7");
        assert_eq!(all.len(), 1 + PLACES);
        assert_eq!(all[PLACES], "10.0.0.2:999", "the latest is among them");
        assert!(!seen(&mut places, &["10.0.0.2:999"]), "said again");
    }
}
