//! Keeps connections open for the master to call on, where it cannot open any to this worker.
use std::time::Duration;

use cake_identity::{Security, Stream, lines};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::announce::spread;

/// Connections that wait: while one is taken and the next one is opened, another is there.
const WAITING: usize = 2;
/// Pause before one is opened again that ended, or was refused, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Most reasons that are told of one row of failures.
const REASONS: usize = 4;

/// Keeps them open to the master at the place that `master` says, while it says one, and hands on those that the
/// master calls on. Ends when nobody takes them any more, or says places.
pub(crate) async fn offer(
    security: Security,
    master: watch::Receiver<Option<String>>,
    called: mpsc::Sender<Stream>,
) {
    let mut slots = JoinSet::new();
    for _ in 0..WAITING {
        slots.spawn(keep_one(security.clone(), master.clone(), called.clone()));
    }
    while slots.join_next().await.is_some() {}
}

async fn keep_one(
    security: Security,
    mut master: watch::Receiver<Option<String>>,
    called: mpsc::Sender<Stream>,
) {
    let (mut pause, mut told) = (PAUSE.0, Vec::new());
    loop {
        let place = match master.wait_for(Option::is_some).await {
            Ok(place) => place.clone().unwrap_or_default(),
            Err(_) => return,
        };
        let wait = async {
            let line = lines::open(&place, &security).await?;
            debug!(master = place, "a connection waits for the master to call");
            line.called().await
        };
        let result = tokio::select! {
            result = wait => result,
            changed = master.changed() => match changed {
                Ok(()) => {
                    pause = PAUSE.0;
                    told.clear();
                    continue;
                }
                Err(_) => return,
            },
        };
        match result {
            Ok(stream) => {
                pause = PAUSE.0;
                told.clear();
                if called.send(stream).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                let why = error.to_string();
                if told.len() < REASONS && !told.contains(&why) {
                    info!(master = place, %error, "a connection for the master ended; opening another");
                    told.push(why);
                }
                tokio::time::sleep(spread(pause)).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}
