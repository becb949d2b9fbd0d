//! Where a stage's output goes: directly to the next stage, or to the master.
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cake_identity::{Peer, Security};
use cake_proto::failure::failure_frame;
use cake_proto::{Client, ConnectError, Failure, Step, Tag, WireFormat, connect, wire};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::{info, warn};

/// How long the next stage may take to say who it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How much later than the next stage this one may hear that their master lets go of both.
const CLOSES: Duration = Duration::from_secs(2);

/// Frames on their way to the master.
pub type MasterSender = mpsc::Sender<Result<wire::StepFrame, Status>>;

/// The way out of a loaded stage. A handle: clones share one route.
#[derive(Clone, Debug)]
pub struct Routes {
    worker: String,
    format: WireFormat,
    frames_queued: usize,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    master: Option<MasterSender>,
    next: Next,
    broken: Option<String>,      // Why the stream to the next stage ended.
    closed: watch::Sender<bool>, // Whether the stage is unloaded.
}

/// What is done with a step that this stage has computed.
#[derive(Clone, Debug)]
enum Next {
    /// Answer the master with the wanted rows.
    Answer,
    /// Ask the master to carry it to the next stage.
    Relay,
    /// Send it to the next stage.
    Direct(mpsc::Sender<wire::StepFrame>),
}

/// Why the next stage cannot be reached directly; the master then relays.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Connected, but it does not answer.
    #[error("{address} does not answer: {reason}")]
    Silent {
        /// The address.
        address: String,
        /// What the call ended with.
        reason: String,
    },
    /// Another worker answers at that address.
    #[error("{address} is worker {found}, expected {expected}")]
    WrongWorker {
        /// The address.
        address: String,
        /// The worker expected there.
        expected: String,
        /// The one that answered.
        found: String,
    },
}

impl Routes {
    /// A route to the master, for the worker called `worker`. Hidden states leave in `format`; up to `frames_queued`
    /// frames of them wait for the link to the next stage before the stage itself waits.
    pub fn new(worker: &str, format: WireFormat, frames_queued: usize) -> Self {
        let closed = watch::Sender::new(false);
        let shared = Shared { master: None, next: Next::Answer, broken: None, closed };
        let shared = Arc::new(Mutex::new(shared));
        Self { worker: worker.to_owned(), format, frames_queued, shared }
    }

    /// Answers and failures go to `master` from now on.
    pub fn set_master(&self, master: MasterSender) {
        let broken = {
            let mut shared = self.lock();
            shared.master = Some(master);
            shared.broken.clone()
        };
        if let Some(reason) = broken {
            self.fail(0, Failure::other(reason)); // It broke before anybody could be told.
        }
    }

    /// This is the last stage: it answers the master.
    pub fn answer_master(&self) {
        self.set_next(Next::Answer);
    }

    /// The next stage cannot be reached from here: the master carries every step to it.
    pub fn relay(&self) {
        self.set_next(Next::Relay);
    }

    /// Opens a stream of steps to the next stage at `address`, which must be `worker_id`.
    ///
    /// # Errors
    /// [`Error`]; the route is unchanged.
    pub async fn direct(
        &self,
        security: &Security,
        address: &str,
        worker_id: &str,
        pipeline: &str,
    ) -> Result<(), Error> {
        let expected = Peer::Worker(worker_id.to_owned());
        let tag = Tag::pipeline(pipeline);
        let (mut client, _) = connect(security, address, Some(&expected), tag).await?;
        identify(&mut client, address, worker_id).await?;
        let (frames, outgoing) = mpsc::channel(self.frames_queued);
        self.set_next(Next::Direct(frames));
        let routes = self.clone();
        let address = address.to_owned();
        // Ends with the stream: when this route is replaced or either side goes.
        tokio::spawn(async move {
            match client.forward(ReceiverStream::new(outgoing)).await {
                Ok(_) => info!(%address, "stream to the next stage closed"),
                Err(status) => {
                    let reason = format!("the stream to {address} broke: {}", status.message());
                    let mut closed = {
                        let mut shared = routes.lock();
                        shared.broken = Some(reason.clone());
                        shared.closed.subscribe()
                    };
                    routes.fail(0, Failure::other(reason));
                    // Where the master lets go of all its workers, which of them hears of it first is chance.
                    let closes = closed.wait_for(|closed| *closed);
                    let error = status.message();
                    match tokio::time::timeout(CLOSES, closes).await {
                        Ok(_) => info!(%address, error, "stream to the next stage closed"),
                        Err(_) => warn!(%address, error, "stream to the next stage broke"),
                    }
                }
            }
        });
        Ok(())
    }

    /// Sends a computed step on its way; whether all of it is in the hands of its link. Waits if that is slow.
    pub async fn send(&self, step: Step) -> bool {
        let (next, master) = {
            let shared = self.lock();
            (shared.next.clone(), shared.master.clone())
        };
        match (next, master) {
            (Next::Direct(frames), _) => {
                for frame in step.into_frames(false, self.format) {
                    if frames.send(frame).await.is_err() {
                        return false; // The task that owns the stream tells the master.
                    }
                }
                true
            }
            (next, Some(master)) => {
                let relay = matches!(next, Next::Relay);
                let step = if relay { step } else { step.into_answer() };
                for frame in step.into_frames(relay, self.format) {
                    if master.send(Ok(frame)).await.is_err() {
                        return false; // The master is gone; its lease ends with it.
                    }
                }
                true
            }
            (_, None) if *self.lock().closed.borrow() => false, // It was under way when the stage was unloaded.
            (_, None) => {
                warn!(step = step.step, "computed a step that nobody waits for");
                false
            }
        }
    }

    /// Tells the master that a step (0: all in flight) failed here.
    pub fn fail(&self, step: u64, failure: Failure) {
        let master = self.lock().master.clone();
        let frame = failure_frame(step, &self.worker, failure);
        if let Some(master) = master {
            tokio::spawn(async move { master.send(Ok(frame)).await.ok() });
        }
    }

    /// Drops the streams, so that their tasks end.
    pub fn close(&self) {
        let mut shared = self.lock();
        shared.master = None;
        shared.next = Next::Answer;
        shared.closed.send_replace(true);
    }

    fn set_next(&self, next: Next) {
        let mut shared = self.lock();
        shared.next = next;
        shared.broken = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Critical sections only assign: a poisoned lock still holds a whole value.
        self.shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Asks the worker at the other end who it is.
async fn identify(client: &mut Client, address: &str, expected: &str) -> Result<(), Error> {
    let silent = |reason: String| Error::Silent { address: address.to_owned(), reason };
    let call = client.describe(wire::DescribeRequest {});
    let description = tokio::time::timeout(ANSWER_TIMEOUT, call)
        .await
        .map_err(|_| silent(format!("no answer within {ANSWER_TIMEOUT:?}")))?
        .map_err(|status| silent(status.message().to_owned()))?
        .into_inner();
    if description.worker_id != expected {
        return Err(Error::WrongWorker {
            address: address.to_owned(),
            expected: expected.to_owned(),
            found: description.worker_id,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        Step {
            step: 1,
            generation: 1,
            items: Vec::new(),
            rows: 3,
            wanted: vec![0, 2],
            stage_us: vec![],
            idle_us: vec![],
            hidden: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        }
    }

    #[tokio::test]
    async fn a_relayed_step_keeps_all_its_rows_and_says_so() {
        let routes = Routes::new("phone", WireFormat::F32, 4);
        let (sender, mut frames) = mpsc::channel(4);
        routes.set_master(sender);
        routes.relay();
        routes.send(step()).await;
        let frame = frames.recv().await.expect("a frame").expect("no status");
        assert!(frame.relay);
        assert_eq!(frame.hidden.len(), 3 * 2 * 4);
    }

    #[tokio::test]
    async fn what_leaves_is_in_the_format_that_was_asked_for() {
        let routes = Routes::new("phone", WireFormat::Bf16, 4);
        let (sender, mut frames) = mpsc::channel(4);
        routes.set_master(sender);
        routes.relay();
        routes.send(step()).await;
        routes.answer_master();
        routes.send(step()).await;
        for rows in [3, 2] {
            let frame = frames.recv().await.expect("a frame").expect("no status");
            assert_eq!(frame.hidden.len(), rows * 2 * 2);
            assert_eq!(frame.head.expect("a head").format(), wire::WireFormat::Bf16);
        }
    }

    #[tokio::test]
    async fn an_unreachable_next_stage_leaves_the_route_as_it_was() {
        let routes = Routes::new("phone", WireFormat::F32, 4);
        let (sender, mut frames) = mpsc::channel(4);
        routes.set_master(sender);
        routes.relay();
        let direct = routes.direct(&Security::Plain, "127.0.0.1:1", "id", "token");
        let error = direct.await.expect_err("nobody there");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        routes.send(step()).await;
        assert!(frames.recv().await.expect("a frame").expect("no status").relay);
    }
}
