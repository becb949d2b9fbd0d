//! Receiving one blob: the network on one side, the store's blocking writer on the other.
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cake_checkpoint::{Digest, MAX_BLOB_TENSORS, MAX_MANIFEST_BYTES, Manifest};
use cake_proto::{limits, wire};
use tokio::sync::mpsc::{self, error::TrySendError};
use tonic::{Status, Streaming};
use tracing::info;

use crate::runtime::Runtime;
use crate::store::{self, Store, Writer};

/// Pieces between the network and the disk: enough to overlap the two.
const PIECES_QUEUED: usize = 16;

/// How often a worker that verifies or flushes says so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// Verifying or flushing one blob takes no longer than this, even on a memory card.
const WORK_LIMIT: Duration = Duration::from_secs(600);

/// Most ranges in which a blob is wanted: its header, and tensors of which each has one before it that is here already.
const MOST_RANGES: usize = MAX_BLOB_TENSORS / 2 + 1;
/// Bytes of a range in an event at most: its own head of 2, and two numbers of 10, each with a head of 1.
const RANGE_BYTES: usize = 2 + 2 * (1 + 10);
/// What is wanted is said in one event, whatever else the store holds.
const _: () = assert!(MOST_RANGES * RANGE_BYTES <= limits::FRAME_BYTES);

/// Events of a push on their way to the master.
pub type Events = mpsc::Sender<Result<wire::PushEvent, Status>>;

/// Takes one blob from `frames` into `store`: says where to go on from, then that it is stored. What is evicted for
/// it rests in none of the `runtimes` any longer.
///
/// # Errors
/// The status that ends the stream. What arrived and was verified stays for the next try.
pub async fn receive(
    store: Store,
    runtimes: Vec<Runtime>,
    mut frames: Streaming<wire::PushFrame>,
    events: &Events,
) -> Result<(), Status> {
    let json = manifest_json(&mut frames).await?;
    let manifest =
        Manifest::from_json(&json).map_err(|error| Status::invalid_argument(error.to_string()))?;
    drop(json);
    let name = manifest.name();
    if store.holds(&name) {
        say(events, Vec::new(), true).await;
        return Ok(());
    }
    let beginning = blocking(move || Ok(begin(&store, &runtimes, &manifest)?));
    let writer = while_working(events, beginning).await?;
    say(events, writer.wanted(), false).await;
    let (pieces, queue) = mpsc::channel(PIECES_QUEUED);
    let disk = tokio::task::spawn_blocking(move || write(writer, queue));
    let received = feed(events, &mut frames, pieces).await;
    let stored = while_working(events, disk).await;
    let stored = stored.map_err(|_| Status::internal("the store's writer panicked"))?;
    // A full disk or a wrong digest explains a broken feed, not the other way round.
    let stored = stored?;
    received?;
    let Some(name) = stored else {
        return Err(Status::cancelled(format!("the push of blob {name} ended early")));
    };
    info!(blob = %name, "blob stored");
    say(events, Vec::new(), true).await;
    Ok(())
}

/// The manifest that a push begins with, from as many frames as it takes.
async fn manifest_json(frames: &mut Streaming<wire::PushFrame>) -> Result<Vec<u8>, Status> {
    let invalid = |what: String| Err(Status::invalid_argument(what));
    let mut json: Vec<u8> = Vec::new();
    let mut whole = None;
    loop {
        let Some(frame) = frames.message().await? else {
            return invalid("a push begins with a manifest, found its end".to_owned());
        };
        let bytes = *whole.get_or_insert(frame.manifest_bytes as usize);
        if bytes > MAX_MANIFEST_BYTES {
            return invalid(format!(
                "a manifest has at most {MAX_MANIFEST_BYTES} bytes, this one is to have {bytes}"
            ));
        }
        let piece = frame.manifest;
        if piece.len() > limits::FRAME_BYTES || piece.is_empty() || piece.len() > bytes - json.len()
        {
            let (left, most) = (bytes - json.len(), limits::FRAME_BYTES);
            let found = piece.len();
            return invalid(format!(
                "a piece of a manifest has 1 to {most} bytes, and no more than the {left} that are missing; found {found}"
            ));
        }
        json.extend_from_slice(&piece); // Grows with what really came.
        if json.len() == bytes {
            return Ok(json);
        }
    }
}

/// Begins a blob in `store`. What was evicted for it rests no longer and so gives its room on the disk back.
fn begin(store: &Store, runtimes: &[Runtime], manifest: &Manifest) -> Result<Writer, store::Error> {
    let let_go = |runtime: &Runtime| runtime.let_go_unless(|name| store.holds(name));
    let let_all_go = || runtimes.iter().filter(|runtime| let_go(runtime)).count() > 0;
    with_room(|| store.begin(manifest.clone()), let_all_go)
}

/// Begins, and then lets go; if room was missing and anything was let go, begins once more.
fn with_room<T>(
    begin: impl Fn() -> Result<T, store::Error>,
    let_go: impl FnOnce() -> bool,
) -> Result<T, store::Error> {
    let begun = begin();
    match (let_go(), begun) {
        (true, Err(store::Error::DiskFull { .. })) => begin(),
        (_, begun) => begun,
    }
}

/// Moves data frames into the writer's queue until the sender has said everything.
async fn feed(
    events: &Events,
    frames: &mut Streaming<wire::PushFrame>,
    pieces: mpsc::Sender<Bytes>,
) -> Result<(), Status> {
    while let Some(frame) = frames.message().await? {
        if frame.data.len() > limits::FRAME_BYTES {
            return Err(Status::invalid_argument(format!(
                "a piece has at most {} bytes, found {}",
                limits::FRAME_BYTES,
                frame.data.len()
            )));
        }
        let sent = match pieces.try_send(frame.data) {
            Err(TrySendError::Full(data)) => while_working(events, pieces.send(data)).await.is_ok(),
            sent => sent.is_ok(),
        };
        if !sent {
            return Ok(()); // The writer stopped; its own error says why.
        }
    }
    Ok(())
}

/// Writes pieces as they come. `None` if they ended before the blob did: the rest may follow later.
fn write(mut writer: Writer, mut queue: mpsc::Receiver<Bytes>) -> Result<Option<Digest>, Status> {
    while let Some(piece) = queue.blocking_recv() {
        writer.write(&piece)?;
    }
    if writer.offset() < writer.blob_bytes() {
        return Ok(None);
    }
    Ok(Some(writer.finish()?))
}

async fn say(events: &Events, wanted: Vec<Range<u64>>, stored: bool) {
    // If the master is gone there is nobody to tell; what is stored stays stored.
    let range = |range: Range<u64>| wire::ByteRange { start: range.start, end: range.end };
    let wanted = wanted.into_iter().map(range).collect();
    let event = wire::PushEvent { wanted, stored, working: false };
    events.send(Ok(event)).await.ok();
}

/// Waits for `work` and tells the master now and then that it goes on, so that a slow disk does not
/// look like a dead worker; after [`WORK_LIMIT`] it does.
pub(crate) async fn while_working<T>(events: &Events, work: impl Future<Output = T>) -> T {
    let started = tokio::time::Instant::now();
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(SIGN_OF_LIFE) => {}
        }
        if started.elapsed() < WORK_LIMIT {
            let event = wire::PushEvent { working: true, ..Default::default() };
            events.try_send(Ok(event)).ok(); // A full queue is a sign of life as well.
        }
    }
}

/// Runs `work` where it may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Status::internal("a blocking task panicked"))?
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::store::tests::{TestBlob, receive};

    #[test]
    fn what_is_evicted_is_let_go_also_where_the_blob_then_cannot_begin() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [held, next] = [0, 1].map(|layer| TestBlob::new(layer, 1000));
        let store = Store::open(folder.path(), Some(held.manifest.file_bytes)).expect("a store");
        let runtime = Runtime::new("a", std::sync::Arc::default());
        runtime.rest(store.open_blob(&receive(&store, &held)).expect("held"));
        // Where its manifest should be written.
        let manifest = format!("partial/{}.json", next.name());
        std::fs::create_dir(folder.path().join(manifest)).expect("a folder");
        let error =
            begin(&store, std::slice::from_ref(&runtime), &next.manifest).expect_err("no manifest");
        assert!(matches!(error, store::Error::Io { .. }), "{error}");
        assert!(!store.holds(&held.name()), "evicted");
        assert!(runtime.take().is_empty(), "let go");
    }

    #[test]
    fn a_blob_begins_again_where_what_was_let_go_may_have_made_room() {
        let full = || store::Error::DiskFull {
            path: "store".into(),
            need_bytes: 2,
            free_bytes: 1,
            prunable_bytes: 0,
        };
        let begun = |let_go: bool, refuse: &dyn Fn(usize) -> Option<store::Error>| {
            let tries = Cell::new(0);
            let begin = || {
                tries.set(tries.get() + 1);
                refuse(tries.get()).map_or(Ok(()), Err)
            };
            (with_room(begin, || let_go).is_ok(), tries.get())
        };
        let at_first = |number| (number == 1).then(full);
        assert_eq!(begun(true, &at_first), (true, 2));
        assert_eq!(begun(false, &at_first), (false, 1), "nothing made room");
        assert_eq!(begun(true, &|_| Some(full())), (false, 2));
        let unreadable = |_| {
            Some(store::Error::Io {
                action: "write",
                path: "store".into(),
                cause: std::io::ErrorKind::PermissionDenied.into(),
            })
        };
        assert_eq!(begun(true, &unreadable), (false, 1), "room was not what it lacked");
        assert_eq!(begun(true, &|_| None), (true, 1));
    }
}
