//! Misses steps that do not come back, and asks the stages where they are.
//!
//! ```text
//! all is well ──a step takes too long──▶ ask all ──pause──▶ ask again ──▶ judged: wait, or lost
//!      └────────a later step came back first──────────────▶ ask all ────▶ lost
//! ```
use std::sync::Arc;
use std::time::Duration;

use cake_proto::{Client, limits, wire};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::judge::{Blame, Heard, Report, Verdict, Way, Work, judge, judge_overtaken};
use super::missed::Missed;
use super::{Error, Shared};

/// How long a stage may take to say how far it is: longer than Wi-Fi stalls.
const ASK: Duration = Duration::from_millis(1200);
/// Between two questions, at least.
const AGAIN: Duration = Duration::from_secs(1);
/// So many times as long as a frame takes over the slowest link, if that is more.
const FRAMES: f64 = 4.0;
/// However slow a link is thought to be.
const MOST: Duration = Duration::from_secs(60);

/// The remote stages, to be asked.
#[derive(Debug)]
pub(super) struct Stages {
    /// How each is asked, in the order of the chain.
    pub(super) clients: Vec<Client>,
    /// Seconds that a row takes over the slowest of the links to them, as planned.
    pub(super) hop_seconds: f64,
}

/// Looks out for as long as the pipeline is whole.
pub(super) async fn look_out(shared: Arc<Shared>, stages: Stages) {
    let (mut sent, mut doubt) = (shared.sent.subscribe(), shared.doubt.subscribe());
    let mut broken = shared.broken.subscribe();
    let mut before: (u64, Vec<Heard>) = (0, Vec::new());
    loop {
        // What has happened by now is seen below; what happens later wakes it.
        sent.mark_unchanged();
        doubt.mark_unchanged();
        let missed = shared.missed();
        let wait = match missed {
            Missed::Over => return,
            Missed::Nothing => None,
            Missed::Not(at) => Some(at),
            Missed::Overtaken => {
                let heard = stages.ask(shared.generation).await;
                let (blame, seen) = judge_overtaken(&heard, &shared.ways(), shared.failed());
                return shared.break_down(shared.blamed(blame, seen));
            }
            Missed::Step { number, rows, since } => {
                let heard = stages.ask(shared.generation).await;
                let earlier = if before.0 == number { &*before.1 } else { &[] };
                let longest = shared.lock().pace.longest_work(rows);
                let judged =
                    judge(number, (earlier, &heard), &shared.ways(), longest, since.elapsed());
                match judged {
                    // Unless it came while the last stage was being asked.
                    Verdict::Lost(blame, seen) if shared.is_pending(number) => {
                        warn!(step = number, ?blame, %seen, "a step will not come back");
                        return shared.break_down(shared.blamed(blame, seen));
                    }
                    _ => info!(step = number, waited = ?since.elapsed(), "a step is late"),
                }
                before = (number, heard);
                Some(Instant::now() + stages.pause(rows, shared.row_width))
            }
        };
        tokio::select! {
            () = until(wait) => {}
            _ = sent.changed(), if wait.is_none() => {}
            _ = doubt.changed() => {}
            _ = broken.wait_for(Option::is_some) => return,
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => sleep(Duration::MAX).await,
    }
}

impl Stages {
    /// How long it takes until something must have moved, where a step of so many rows is on its way.
    fn pause(&self, rows: usize, row_width: usize) -> Duration {
        let frame_rows = limits::FRAME_BYTES.checked_div(row_width * 4).unwrap_or(1).max(1);
        let seconds = FRAMES * self.hop_seconds.max(0.0) * rows.min(frame_rows) as f64;
        AGAIN.max(Duration::try_from_secs_f64(seconds).unwrap_or(MOST)).min(MOST)
    }

    fn ask(&self, generation: u64) -> impl Future<Output = Vec<Heard>> + Send + use<> {
        let clients = self.clients.clone();
        join_all(clients.into_iter().map(move |client| ask(client, generation)))
    }
}

/// Asks one stage how far it is.
async fn ask(mut client: Client, generation: u64) -> Heard {
    match timeout(ASK, client.progress(wire::ProgressRequest {})).await {
        Ok(Ok(reply)) => heard(reply.into_inner(), generation),
        Ok(Err(_)) | Err(_) => Heard::Nothing,
    }
}

fn heard(said: wire::ProgressReply, generation: u64) -> Heard {
    if said.generation != generation {
        return Heard::Nothing; // Our stage is not there any more.
    }
    let since = Duration::from_micros(said.at_work_us);
    let work = Work { step: said.at_work, since, leaving: said.leaving };
    Heard::Report(Report {
        frames: said.frames,
        received: said.received,
        received_count: said.received_count,
        at_work: (said.at_work > 0).then_some(work),
        sent: said.sent,
        sent_count: said.sent_count,
    })
}

impl Shared {
    /// How what each stage makes comes to the next one.
    fn ways(&self) -> Vec<Way> {
        let pending = self.lock();
        let carried = |stage| pending.carried.get(&stage).copied().unwrap_or_default();
        let way = |(stage, relayed): (usize, &bool)| match relayed {
            true => Way::Carried(carried(stage)),
            false => Way::Direct,
        };
        self.relayed.iter().enumerate().map(way).collect()
    }

    /// The error that says so.
    fn blamed(&self, blame: Blame, reason: String) -> Error {
        let name = |stage: usize| self.remotes.get(stage).map(|remote| remote.name.clone());
        match blame {
            Blame::Stage(stage) => match name(stage) {
                Some(worker) => Error::Swallowed { worker, reason },
                None => Error::Silent,
            },
            Blame::Mute(stage) => match name(stage) {
                Some(worker) => Error::Lost { worker, reason },
                None => Error::Silent,
            },
            Blame::Hop(stage) => match (name(stage), name(stage + 1)) {
                (Some(from), Some(to)) => Error::Hop { from, to, reason },
                _ => Error::Silent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answer, leave, shared};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_step_is_missed_once_it_takes_longer_than_those_before() {
        let (shared, _frames) = shared();
        assert!(matches!(shared.missed(), Missed::Nothing));
        let _one = leave(&shared, 1);
        shared.left(1);
        let Missed::Not(at) = shared.missed() else { panic!("it left a moment ago") };
        sleep_until(at).await;
        let Missed::Step { number: 1, rows: 1, .. } = shared.missed() else { panic!("missed") };
        shared.answer(1, answer(1));
        assert!(matches!(shared.missed(), Missed::Nothing));
        // The next one may take as long as the first one did, and more.
        let _two = leave(&shared, 2);
        shared.left(2);
        sleep(Duration::from_millis(2400)).await;
        assert!(matches!(shared.missed(), Missed::Not(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_masters_own_stage_computes_is_not_missed_elsewhere() {
        let (shared, _frames) = shared();
        let _one = leave(&shared, 1);
        sleep(Duration::from_secs(100)).await;
        assert!(matches!(shared.missed(), Missed::Not(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_overtakes_another_one_is_no_answer() {
        let (shared, _frames) = shared();
        let (one, mut two) = (leave(&shared, 1), leave(&shared, 2));
        shared.left(2);
        shared.answer(1, answer(2));
        assert!(matches!(shared.missed(), Missed::Overtaken));
        assert!(two.try_recv().is_err(), "it may stand on what is missing");
        let stages = Stages { clients: Vec::new(), hop_seconds: 0.0 };
        look_out(shared.clone(), stages).await;
        assert!(matches!(shared.missed(), Missed::Over));
        for ticket in [one, two] {
            let error = ticket.await.expect("told").expect_err("lost");
            assert!(error.is_loss(), "{error}");
        }
    }

    #[test]
    fn a_slow_link_has_time_for_a_frame() {
        let pause =
            |hop_seconds, rows| Stages { clients: Vec::new(), hop_seconds }.pause(rows, 2048);
        assert_eq!(pause(0.0002, 1), AGAIN);
        assert_eq!(pause(0.065, 128), Duration::from_secs_f64(4.0 * 0.065 * 128.0));
        assert_eq!(pause(0.065, 512), pause(0.065, 128), "a frame is no longer than that");
        assert_eq!(pause(f64::INFINITY, 1), MOST);
    }
}
