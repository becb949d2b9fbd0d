//! Blobs to workers: what is missing, in parallel over workers, resumable, never held whole.
mod manifests;
mod progress;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{BlobSource, LayerRange, Manifest};
use cake_platform::DISK_RESERVE;
use cake_proto::said::sentence;
use cake_proto::{Client, limits, wire};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::cluster::{self, Member};
use crate::model::Model;

pub use manifests::Manifests;
pub use progress::{Progress, WorkerProgress};

/// Bytes of a blob in one message: below the size from which allocators ask the system for every
/// buffer and give it back, which cost a third of the speed with pieces of 1 MiB.
const PIECE_BYTES: u64 = 64 << 10;
/// Pieces between the disk and the connection.
const PIECES_QUEUED: usize = 16;
/// How often, and after which pause at first, a blob is offered again whose last push is just ending.
const BUSY_TRIES: u32 = 7;
const BUSY_PAUSE: Duration = Duration::from_millis(250);
/// A push that moves nothing for this long has failed.
const STALL: Duration = Duration::from_secs(30);

/// One worker and the layers whose blobs it must hold.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    /// The worker.
    pub member: &'a Member,
    /// Its layers.
    pub layers: LayerRange,
}

/// What pushing to one worker came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pushed {
    /// Worker name.
    pub worker: String,
    /// Blob bytes sent now.
    pub pushed_bytes: u64,
    /// Blob bytes it had already, whole or in part.
    pub reused_bytes: u64,
}

/// Why blobs could not be pushed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the worker failed.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// The worker refused or lost a blob.
    #[error("pushing layer {layer} to {worker:?} failed: {reason}")]
    Push {
        /// The worker.
        worker: String,
        /// The layer.
        layer: usize,
        /// What it said.
        reason: String,
    },
    /// The worker is still busy with an earlier push of the same blob.
    #[error("pushing layer {layer} to {worker:?} failed: {reason}")]
    Busy {
        /// The worker.
        worker: String,
        /// The layer.
        layer: usize,
        /// What it said.
        reason: String,
    },
    /// Nothing moved.
    #[error("pushing layer {layer} to {worker:?} stalled: no byte moved for {} s", STALL.as_secs())]
    Stalled {
        /// The worker.
        worker: String,
        /// The layer.
        layer: usize,
    },
    /// Not enough disk over there.
    #[error("{worker:?} has {} of disk free, needs {} for its layers {layers} \
             (and {} to spare): free some, or give its store another directory",
        format_bytes(*free), format_bytes(*need), format_bytes(DISK_RESERVE))]
    Disk {
        /// The worker.
        worker: String,
        /// Its layers.
        layers: LayerRange,
        /// Bytes still to be sent.
        need: u64,
        /// Bytes free.
        free: u64,
    },
    /// The store would have to keep more than it may.
    #[error("{worker:?} keeps at most {} in its store, its layers {layers} need {}: \
             start it with a larger --store-limit, or give it fewer layers",
        format_bytes(*limit), format_bytes(*need))]
    StoreLimit {
        /// The worker.
        worker: String,
        /// Its layers.
        layers: LayerRange,
        /// Bytes of their blobs.
        need: u64,
        /// Bytes it keeps.
        limit: u64,
    },
    /// A task of ours panicked.
    #[error("a pushing task ended unexpectedly")]
    Task,
}

/// Checks that every worker has the disk, and its store the room, for what it will be sent.
///
/// # Errors
/// [`Error::Disk`] or [`Error::StoreLimit`] naming the first that has not.
pub fn check_disk(assignments: &[Assignment<'_>], manifests: &Manifests) -> Result<(), Error> {
    for assignment in assignments {
        let (offer, layers) = (&assignment.member.offer, assignment.layers);
        let worker = || assignment.member.name().to_owned();
        let whole = layers.iter().map(|layer| manifests.blob_bytes(layer)).sum();
        if let Some(limit) = offer.store_limit_bytes.filter(|limit| whole > *limit) {
            return Err(Error::StoreLimit { worker: worker(), layers, need: whole, limit });
        }
        let need = missing_bytes(assignment, manifests);
        // To keep its limit the store deletes what was used longest ago.
        let over = |limit| offer.stored_bytes.saturating_add(need).saturating_sub(limit);
        let evicted = offer.store_limit_bytes.map_or(0, over).min(offer.stored_bytes);
        let free = offer.free_disk_bytes.saturating_add(evicted);
        if need > 0 && need.saturating_add(DISK_RESERVE) > free {
            return Err(Error::Disk { worker: worker(), layers, need, free });
        }
    }
    Ok(())
}

/// Blob bytes of an assignment that the worker is not known to hold, whole or in part.
pub fn missing_bytes(assignment: &Assignment<'_>, manifests: &Manifests) -> u64 {
    let offer = &assignment.member.offer;
    let missing = |layer| {
        let whole = manifests.blob_bytes(layer);
        let Some(name) = manifests.known(layer).map(|manifest| manifest.name()) else {
            return whole;
        };
        let part = offer.partial.get(&name).copied().unwrap_or(0);
        if offer.blobs.contains(&name) { 0 } else { whole.saturating_sub(part) }
    };
    assignment.layers.iter().map(missing).sum()
}

/// Brings every worker the blobs it lacks; workers in parallel, layers in order.
///
/// # Errors
/// The first [`Error`]; what was stored until then stays and is not sent again next time.
pub async fn push_all(
    assignments: &[Assignment<'_>],
    manifests: &Arc<Manifests>,
    progress: &Arc<Progress>,
) -> Result<Vec<Pushed>, Error> {
    let pushes = assignments
        .iter()
        .zip(&progress.workers)
        .map(|(assignment, progress)| push_to(*assignment, manifests.clone(), progress.clone()));
    futures_util::future::try_join_all(pushes).await
}

/// Brings one worker its blobs, hashing layer N+1 while N is sent.
async fn push_to(
    assignment: Assignment<'_>,
    manifests: Arc<Manifests>,
    progress: Arc<WorkerProgress>,
) -> Result<Pushed, Error> {
    let Assignment { member, layers } = assignment;
    let mut client = member.connection().await?;
    let mut pushed = Pushed { worker: member.name().to_owned(), ..Pushed::default() };
    // All at once first: the worker then keeps what the plan needs while it makes room for the rest.
    let known = layers.iter().filter_map(|layer| manifests.known(layer));
    let known = known.map(|manifest| manifest.name().to_string()).collect();
    held_of(&mut client, member.name(), known).await?;
    for layer in layers.iter() {
        let manifest = manifests.get(layer).await?;
        let ahead = (layer + 1 < layers.end).then(|| {
            let manifests = manifests.clone();
            tokio::spawn(async move { manifests.get(layer + 1).await.map(drop) })
        });
        let bytes = manifest.file_bytes;
        let name = manifest.name().to_string();
        let held = held_of(&mut client, member.name(), vec![name]).await?;
        let sent = if held.is_empty() {
            let source = manifests.model().clone();
            push_patiently(&mut client, member.name(), source, layer, &manifest, &progress).await?
        } else {
            0
        };
        pushed.pushed_bytes += sent;
        pushed.reused_bytes += bytes - sent;
        progress.reuse(bytes - sent);
        if let Some(ahead) = ahead {
            ahead.await.map_err(|_| Error::Task)??;
        }
    }
    progress.finish();
    Ok(pushed)
}

/// Which of these blobs the worker holds; it keeps them, and a place for the others, from now on.
async fn held_of(
    client: &mut Client,
    worker: &str,
    blobs: Vec<String>,
) -> Result<Vec<String>, cluster::Error> {
    let call = client.query(wire::QueryRequest { blobs });
    Ok(cluster::within(worker, "say which blobs it holds", call).await?.held)
}

/// Sends one blob; waits while the worker is still ending an earlier push of it.
async fn push_patiently(
    client: &mut Client,
    worker: &str,
    model: Model,
    layer: usize,
    manifest: &Arc<Manifest>,
    progress: &Arc<WorkerProgress>,
) -> Result<u64, Error> {
    let mut tries = 0;
    loop {
        match push_blob(client, worker, model.clone(), layer, manifest, progress).await {
            Err(Error::Busy { .. }) if tries < BUSY_TRIES => {
                tokio::time::sleep(BUSY_PAUSE * 2u32.pow(tries)).await;
                tries += 1;
            }
            result => return result,
        }
    }
}

/// Sends what the worker lacks of one blob. Returns the bytes sent.
async fn push_blob(
    client: &mut Client,
    worker: &str,
    model: Model,
    layer: usize,
    manifest: &Arc<Manifest>,
    progress: &Arc<WorkerProgress>,
) -> Result<u64, Error> {
    let failed = |status: &Status| {
        let (worker, reason) = (worker.to_owned(), sentence(status.message()));
        match status.code() {
            Code::Aborted => Error::Busy { worker, layer, reason },
            Code::Unavailable | Code::Unknown => {
                let reason = format!("the connection is lost ({reason})");
                Error::Push { worker, layer, reason }
            }
            _ => Error::Push { worker, layer, reason },
        }
    };
    let (frames, outgoing) = mpsc::channel(PIECES_QUEUED);
    let opening = async {
        for frame in manifest_frames(manifest) {
            // Who hears no more of them answers why.
            if frames.send(frame).await.is_err() {
                break;
            }
        }
    };
    let call = client.push(ReceiverStream::new(outgoing));
    let (call, ()) = tokio::time::timeout(STALL, async { tokio::join!(call, opening) })
        .await
        .map_err(|_| Error::Stalled { worker: worker.to_owned(), layer })?;
    let mut events = call.map_err(|status| failed(&status))?.into_inner();
    let next = async |events: &mut Streaming<wire::PushEvent>| {
        let event = watch(events, progress).await;
        let event = event.ok_or(Error::Stalled { worker: worker.to_owned(), layer })?;
        let event = event.map_err(|status| failed(&status))?;
        event.ok_or_else(|| failed(&Status::cancelled("the worker ended the push")))
    };
    let start = next(&mut events).await?;
    if start.stored {
        return Ok(0);
    }
    let (total, counter) = (manifest.file_bytes, progress.clone());
    let wanted = wanted_ranges(&start, total).ok_or_else(|| {
        failed(&Status::cancelled("the worker wants bytes that the blob does not have"))
    })?;
    let sent = wanted.iter().map(|range| range.end - range.start).sum();
    // Read errors come first: the worker only sees a push that ended early.
    let reader = tokio::task::spawn_blocking(move || {
        let source = model.blob(layer);
        send_pieces(&source, &wanted, &frames, &counter)
    });
    let stored = next(&mut events).await;
    // After a failure the reader may sit in a queue that nobody empties; it goes with the connection.
    if stored.is_ok() || reader.is_finished() {
        reader.await.map_err(|_| Error::Task)??;
    }
    if !stored?.stored {
        return Err(failed(&Status::cancelled("the worker did not confirm the blob")));
    }
    Ok(sent)
}

/// What a push begins with: its manifest, in pieces.
fn manifest_frames(manifest: &Manifest) -> Vec<wire::PushFrame> {
    let json = bytes::Bytes::from(manifest.to_json());
    let manifest_bytes = u32::try_from(json.len()).unwrap_or(u32::MAX); // More is refused there.
    let starts = (0..json.len()).step_by(limits::FRAME_BYTES);
    let piece = |start: usize| wire::PushFrame {
        manifest: json.slice(start..json.len().min(start + limits::FRAME_BYTES)),
        manifest_bytes: if start == 0 { manifest_bytes } else { 0 },
        ..Default::default()
    };
    starts.map(piece).collect()
}

/// What the worker wants, if it is ascending and within the blob.
fn wanted_ranges(event: &wire::PushEvent, total: u64) -> Option<Vec<Range<u64>>> {
    let mut end = 0;
    let range = |wanted: &wire::ByteRange| {
        let range = wanted.start..wanted.end;
        let fits = end <= range.start && range.start < range.end && range.end <= total;
        end = range.end;
        fits.then_some(range)
    };
    event.wanted.iter().map(range).collect()
}

/// Reads the wanted parts of the blob piece by piece into the connection; stops quietly if the worker hangs up.
fn send_pieces(
    source: &BlobSource<'_>,
    wanted: &[Range<u64>],
    frames: &mpsc::Sender<wire::PushFrame>,
    progress: &WorkerProgress,
) -> Result<(), cake_checkpoint::Error> {
    for range in wanted {
        let mut offset = range.start;
        while offset < range.end {
            let length = (range.end - offset).min(PIECE_BYTES);
            let mut piece = vec![0; length as usize];
            source.read(offset, &mut piece)?;
            let frame = wire::PushFrame { data: piece.into(), ..Default::default() };
            if frames.blocking_send(frame).is_err() {
                return Ok(());
            }
            offset += length;
            progress.send(length);
        }
    }
    Ok(())
}

/// The next event that is more than a sign of life, or `None` if nothing moved for [`STALL`].
async fn watch(
    events: &mut Streaming<wire::PushEvent>,
    progress: &WorkerProgress,
) -> Option<Result<Option<wire::PushEvent>, Status>> {
    loop {
        let before = progress.sent();
        match tokio::time::timeout(STALL, events.message()).await {
            Ok(Ok(Some(event))) if event.working => {}
            Ok(event) => return Some(event),
            Err(_) if progress.sent() == before => return None,
            Err(_) => {} // `message` is cancel-safe: wait on.
        }
    }
}
