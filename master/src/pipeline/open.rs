//! Making a pipeline of a plan: load every stage, tell each where its output goes, open the streams.
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cake_checkpoint::{Digest, LayerRange, ModelSpec};
use cake_engine::Stage;
use cake_proto::said::sentence;
use cake_proto::wire;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tracing::{info, warn};

use super::announce::announce;
use super::lookout::{Stages, look_out};
use super::pace::Pace;
use super::{FRAMES_QUEUED, LocalStage, Pending, Pipeline, Remote, Shared, StageInfo};
use crate::cluster::{self, Member, within};
use crate::sizing::{LOCAL, Promise};

/// Loading moves something at least this often: it re-hashes at the speed of the disk.
const LOAD_STALL: Duration = Duration::from_secs(120);

/// Everything a pipeline is made of.
pub struct Opening<'a> {
    /// Generation of the plan.
    pub generation: u64,
    /// The model.
    pub model: &'a ModelSpec,
    /// What every stage must have room for.
    pub promise: Promise,
    /// Seconds for a row through the whole chain, as planned.
    pub step_seconds: f64,
    /// The master's own layers, first in the chain.
    pub local: Option<(Stage, LayerRange)>,
    /// Workers in the order of the chain.
    pub remotes: Vec<StageSpec<'a>>,
}

/// One worker's part.
#[derive(Debug)]
pub struct StageSpec<'a> {
    /// The worker.
    pub member: &'a Member,
    /// Which of its devices computes, by name.
    pub device: &'a str,
    /// Its layers.
    pub layers: LayerRange,
    /// Their blobs, in layer order.
    pub blobs: Vec<Digest>,
    /// Bytes that the plan gives it.
    pub planned_bytes: u64,
    /// Seconds to deliver one row to it.
    pub hop_seconds: f64,
    /// Whether nothing comes through from it to the next stage, as was found before.
    pub relay: bool,
}

/// Why no pipeline came of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// Blobs on a worker's disk were damaged; it has discarded them.
    #[error("{} damaged on the disk of {worker:?}", if *count == 1 { "one blob is".into() } else { format!("{count} blobs are") })]
    Corrupt {
        /// The worker.
        worker: String,
        /// How many.
        count: usize,
    },
    /// The master's own stage could not start.
    #[error("cannot start the master's own stage: {0}")]
    Thread(#[from] std::io::Error),
}

/// Loads the stages and connects them.
///
/// # Errors
/// [`Error`]; after [`Error::Corrupt`] the blobs must be pushed again.
pub async fn open(opening: Opening<'_>) -> Result<Pipeline, Error> {
    let model = match opening.remotes.is_empty() {
        true => Bytes::new(), // Nobody is told.
        false => cluster::sendable(opening.model)?,
    };
    let loads = opening.remotes.iter().map(|stage| load(stage, &opening, model.clone()));
    // All are waited for: after damage on two workers, both have discarded what they must be sent.
    futures_util::future::join_all(loads).await.into_iter().collect::<Result<(), _>>()?;
    let directs = route(&opening).await?;
    let mut tasks = JoinSet::new();
    let mut remotes = Vec::new();
    let mut streams = Vec::new();
    for spec in &opening.remotes {
        let (frames, outgoing) = mpsc::channel(FRAMES_QUEUED);
        let mut client = spec.member.client.clone();
        let call = client.steps(ReceiverStream::new(outgoing));
        streams.push(within(spec.member.name(), "open a stream of steps", call).await?);
        let row_width = opening.model.row_width(spec.layers.end);
        remotes.push(Remote { name: spec.member.name().to_owned(), frames, row_width });
    }
    let mut stages = Vec::new();
    // The last one has no next stage: what it makes is the answer.
    let ways = directs.iter().enumerate();
    let relayed = ways.map(|(index, direct)| !direct && index + 1 < directs.len()).collect();
    let shared = Arc::new(Shared {
        generation: opening.generation,
        row_width: opening.model.widest_row(),
        wire: opening.promise.wire,
        next_step: AtomicU64::new(1), // 0 stands for every step in flight.
        sent: watch::channel(0).0,
        left: AtomicU64::new(0),
        doubt: watch::channel(()).0,
        pending: Mutex::new(Pending {
            pace: Pace::planned(opening.step_seconds),
            ..Pending::default()
        }),
        broken: watch::channel(None).0,
        remotes,
        relayed,
    });
    for (index, stream) in streams.into_iter().enumerate() {
        let (shared, max_rows) = (shared.clone(), opening.promise.max_rows());
        tasks.spawn(async move { shared.listen(index, stream, max_rows).await });
    }
    let mut local = None;
    if let Some((stage, layers)) = opening.local {
        let (known, shared, runtime) = (shared.clone(), shared.clone(), Handle::current());
        let wanted = move |step| known.is_pending(step);
        let done = move |result| runtime.block_on(shared.after_local(result));
        local = Some(LocalStage::start(stage, wanted, done)?);
        stages.push(StageInfo { worker: LOCAL.to_owned(), layers, direct: true });
    }
    for (spec, direct) in opening.remotes.iter().zip(directs) {
        let worker = spec.member.name().to_owned();
        stages.push(StageInfo { worker, layers: spec.layers, direct });
    }
    let begin = usize::from(local.is_some());
    let announcer = shared.clone();
    tasks.spawn(async move { announce(announcer, begin).await });
    if !opening.remotes.is_empty() {
        let specs = opening.remotes.iter();
        let hop_seconds = specs.clone().map(|spec| spec.hop_seconds).fold(0.0, f64::max);
        let clients = specs.map(|spec| spec.member.client.clone()).collect();
        let (shared, asked) = (shared.clone(), Stages { clients, hop_seconds });
        tasks.spawn(async move { look_out(shared, asked).await });
    }
    // At least one step per stage, and one more on the way into each.
    let in_flight = Arc::new(Semaphore::new(2 * stages.len().max(1)));
    Ok(Pipeline { shared, local, stages, in_flight, _tasks: tasks })
}

/// Loads one stage of the `model` (as it is sent) on its worker; waits until its blobs are verified and mapped.
async fn load(spec: &StageSpec<'_>, opening: &Opening<'_>, model: Bytes) -> Result<(), Error> {
    let name = spec.member.name();
    let promise = &opening.promise;
    let request = wire::LoadRequest {
        generation: opening.generation,
        model,
        layer_start: spec.layers.start as u32,
        layer_end: spec.layers.end as u32,
        blobs: spec.blobs.iter().map(ToString::to_string).collect(),
        kv_dtype: promise.kv.to_string(),
        kv_blocks: promise.kv_blocks() as u32,
        max_positions: promise.context as u32,
        max_rows: promise.max_rows() as u32,
        planned_bytes: spec.planned_bytes,
        numerics: promise.numerics.to_string(),
        wire: wire::WireFormat::from(promise.wire).into(),
        device: spec.device.to_owned(),
        state_slots: promise.state_slots as u32,
    };
    let mut client = spec.member.client.clone();
    let mut events = within(name, "load its layers", client.load(request)).await?;
    loop {
        let event = tokio::time::timeout(LOAD_STALL, events.message()).await;
        let event = event.unwrap_or_else(|_| Err(Status::deadline_exceeded("")));
        let event = event.map_err(|status| failed(name, &status))?;
        let event = event.ok_or_else(|| failed(name, &Status::unknown("it ended the load")))?;
        if !event.corrupt.is_empty() {
            return Err(Error::Corrupt { worker: name.to_owned(), count: event.corrupt.len() });
        }
        if event.done {
            info!(worker = name, layers = %spec.layers, "loaded");
            return Ok(());
        }
    }
}

/// Why the worker of this name loads nothing. Stages of other models that are in its way are no fault of its.
fn failed(name: &str, status: &Status) -> cluster::Error {
    match status.code() {
        Code::Aborted => {
            cluster::Error::Crowded { name: name.to_owned(), reason: sentence(status.message()) }
        }
        _ => cluster::Error::call(name, "load its layers", status),
    }
}

/// Tells each stage where its output goes, the last one first: a stage lets the previous one in
/// only once it knows their pipeline. Returns whether each hop is direct.
async fn route(opening: &Opening<'_>) -> Result<Vec<bool>, Error> {
    let pipeline = cake_identity::random_token();
    let mut directs = vec![true; opening.remotes.len()];
    let mut next: Option<&Member> = None;
    for (index, spec) in opening.remotes.iter().enumerate().rev() {
        let request = wire::RouteRequest {
            generation: opening.generation,
            // One that nobody can connect to, or that nothing reaches, gets what comes for it from the master.
            next_address: next
                .filter(|_| !spec.relay)
                .and_then(Member::address_for_others)
                .unwrap_or_default()
                .to_owned(),
            next_worker_id: next.map(|member| member.offer.worker_id.clone()).unwrap_or_default(),
            pipeline: pipeline.clone(),
            last: next.is_none(),
        };
        let mut client = spec.member.client.clone();
        let name = spec.member.name();
        let reply = within(name, "connect to the next stage", client.route(request)).await?;
        if !reply.direct {
            let next = next.map_or("the master", Member::name);
            warn!(worker = name, %next, reason = %reply.detail, "no direct way: the master relays this hop");
        }
        directs[index] = reply.direct;
        next = Some(spec.member);
    }
    Ok(directs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_not_blamed_for_the_room_that_other_models_take() {
        let said = Status::aborted("cannot load: 2 B are needed");
        let crowded = failed("attic", &said);
        assert!(matches!(crowded, cluster::Error::Crowded { .. }), "{crowded}");
        let said = Status::resource_exhausted("the plan needs 3 B here, this worker offers 2 B");
        let other = failed("attic", &said);
        assert!(matches!(other, cluster::Error::Call { .. }), "{other}");
    }
}
