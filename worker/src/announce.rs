//! Tells the master where this worker is, wherever either of them has gone.
use std::net::SocketAddr;
use std::time::Duration;

use cake_discovery::{About, News, Role, Sighting, look_out};
use cake_identity::join::{self, Noted};
use cake_identity::{Error, random_token};
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
    let (mut retry, mut told, mut complained) = (RETRY, None, false);
    let mut shut_out: Option<String> = None; // Where that has been told.
    loop {
        while places.is_empty() {
            next(&mut news, &mut places).await;
        }
        let hello = hello(&membership, places.last.clone(), places.others(), listen);
        let (said, heard) = hearing(hello, &mut news, &mut places).await;
        let pause = match said {
            Ok((master, Noted { reachable, name })) => {
                if let Some(name) = name.filter(|name| membership.name().as_ref() != Some(name)) {
                    info!(%name, "the master calls this worker so, as another has its name");
                    keep(&membership, move |membership| membership.note_name(&name)).await;
                }
                let lines = (!reachable).then(|| master.clone());
                lines_to.send_if_modified(|now| {
                    if lines.is_some() && listen.is_some() && now.is_none() {
                        info!(%master, "the master cannot connect to this worker, which connects to it instead");
                    }
                    std::mem::replace(now, lines.clone()) != lines
                });
                if told.as_ref() != Some(&master) {
                    info!(%master, "the master knows where this worker is");
                    let master = master.clone();
                    keep(&membership, move |membership| membership.remember(&master)).await;
                }
                let again = places.last.as_ref() != Some(&master);
                places.last = Some(master.clone());
                (retry, told, complained) = (RETRY, Some(master), false);
                shut_out = None;
                // Whoever is reached at several places answered at each: what it says at this one alone counts.
                if again { RETRY } else { HELLO }
            }
            Err(error) => {
                told = None;
                let refused = error.no_member_at();
                // What it says once it answers is not what it is silent about.
                if let Some(master) = refused
                    && shut_out.as_deref() != Some(master)
                {
                    warn!(
                        %error,
                        "this worker is not used: the master at {master} has shut it out or forgotten it; with \
                         --token and what `cake-master token` prints there it joins again"
                    );
                    shut_out = Some(master.to_owned());
                } else if refused.is_none() && !std::mem::replace(&mut complained, true) {
                    info!(%error, "the master does not answer; trying again");
                }
                let pause = spread(retry);
                retry = (retry * 3 / 2).min(HELLO);
                pause
            }
        };
        let heard = heard
            || tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = next(&mut news, &mut places) => true,
            };
        if heard {
            retry = RETRY;
        }
        rest(&mut news, &mut places).await;
    }
}

/// Says it at the last place that was proven, and only if the master is not there at all others at once: one that
/// is reached in two ways shall not find this worker in one and not in the other. Returns where the master is, and
/// what it noted.
async fn hello(
    membership: &Membership,
    last: Option<String>,
    others: Vec<String>,
    listen: Option<SocketAddr>,
) -> Result<(String, Noted), Error> {
    let at = |master: String| async move {
        let name = membership.name();
        let security = membership.security();
        let noted = join::hello(&master, security, listen, true, name.as_deref()).await?;
        Ok::<_, Error>((master, noted))
    };
    let error = match last {
        Some(last) => match at(last).await {
            Err(error) => Some(error),
            said => return said,
        },
        None => None,
    };
    match (others.is_empty(), error) {
        (true, error) => Err(error.unwrap_or(Error::NotFound)),
        (false, _) => Ok(select_ok(others.into_iter().map(|other| Box::pin(at(other)))).await?.0),
    }
}

/// What `task` comes to, and whether meanwhile anything was heard that is worth another try. Anybody can say
/// anything: it does not end the task.
async fn hearing<T>(
    task: impl Future<Output = T>,
    news: &mut Option<mpsc::Receiver<News>>,
    places: &mut Places,
) -> (T, bool) {
    let mut heard = false;
    tokio::pin!(task);
    loop {
        tokio::select! {
            done = &mut task => return (done, heard),
            () = next(news, places) => heard = true,
        }
    }
}

/// About as long, so that not all workers of a master that comes back come at once: from half of it to one and a half.
pub(crate) fn spread(pause: Duration) -> Duration {
    let random = u32::from_str_radix(&random_token()[..2], 16).unwrap_or(128);
    pause / 2 + pause * random / 256
}

/// Where the master may be.
struct Places {
    /// Where it was last: what others say does not displace it.
    last: Option<String>,
    /// Where it is said to be, the latest last.
    seen: Vec<String>,
}

impl Places {
    fn is_empty(&self) -> bool {
        self.last.is_none() && self.seen.is_empty()
    }

    /// Beside the last one.
    fn others(&self) -> Vec<String> {
        let others = self.seen.iter().filter(|seen| self.last.as_ref() != Some(seen));
        others.cloned().collect()
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

/// Keeps what the master is known to be, or to say, so that it holds after a restart without any news.
async fn keep(
    membership: &Membership,
    note: impl FnOnce(&Membership) -> Result<(), Error> + Send + 'static,
) {
    let membership = membership.clone();
    let kept = tokio::task::spawn_blocking(move || note(&membership)).await;
    if let Ok(Err(error)) = kept {
        warn!(%error, "what is known of the master will not be remembered");
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

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
        assert_eq!(places.last.as_deref(), Some("10.0.0.1:7"));
        let others = places.others();
        assert_eq!(others.len(), PLACES);
        assert_eq!(others[PLACES - 1], "10.0.0.2:999", "the latest is among them");
        assert!(!seen(&mut places, &["10.0.0.2:999"]), "said again");
    }

    #[tokio::test]
    async fn whatever_is_said_meanwhile_a_hello_comes_to_its_end_and_it_is_known_after_it() {
        let (tell, news) = mpsc::channel(1);
        let (enough, slow) = oneshot::channel();
        let liar = tokio::spawn(async move {
            let mut enough = Some(enough);
            for port in 1..=u16::MAX {
                let addresses = vec![SocketAddr::from(([10, 0, 0, 2], port))];
                let id = "master".to_owned();
                if tell.send(News::Seen(Sighting { id, addresses })).await.is_err() {
                    return;
                }
                if usize::from(port) > 2 * PLACES
                    && let Some(enough) = enough.take()
                {
                    enough.send(()).expect("it is waited for");
                }
            }
        });
        let mut news = Some(news);
        let mut places = Places { last: Some("10.0.0.1:7".to_owned()), seen: Vec::new() };
        // One during which more is said than is remembered; the liar does not stop then.
        let slow = async { slow.await.expect("the liar says so much") };
        assert_eq!(hearing(slow, &mut news, &mut places).await, ((), true));
        assert_eq!(places.others().len(), PLACES);
        let (done, heard) = hearing(async { 7 }, &mut None, &mut places).await;
        assert_eq!((done, heard), (7, false));
        drop(news);
        liar.await.expect("no panic");
    }

    #[test]
    fn pauses_are_spread_around_what_they_were() {
        let pauses: Vec<Duration> = (0..100).map(|_| spread(RETRY)).collect();
        assert!(pauses.iter().all(|pause| (RETRY / 2..RETRY * 3 / 2).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
