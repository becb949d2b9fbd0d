//! Pushes that lie, break off or are not allowed, by a master played by hand.
use cake_checkpoint::{BlobSource, Checkpoint, Manifest};
use cake_proto::{Client, Tag, wire};
use cake_tests::master::path;
use cake_tests::{Golden, HeldBlobs, Master, TestWorker, dial, golden};
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};

use super::assert_says;

/// One layer of a golden model as a master would push it.
struct Layer {
    manifest: Manifest,
    bytes: Vec<u8>,
}

impl Layer {
    fn of(golden: &Golden) -> Self {
        let checkpoint = Checkpoint::open(&path(&golden.path)).expect("a checkpoint");
        let source = BlobSource::new(&checkpoint, 0);
        let mut bytes = Vec::new();
        source.write_to(&mut bytes).expect("readable");
        Self { manifest: source.manifest().expect("readable"), bytes }
    }

    /// The frames of an honest push.
    fn frames(&self) -> Vec<wire::PushFrame> {
        let mut frames = vec![manifest_frame(self.manifest.to_json())];
        frames.extend(self.bytes.chunks(64 << 10).map(|piece| data_frame(piece.to_vec())));
        frames
    }
}

fn manifest_frame(json: Vec<u8>) -> wire::PushFrame {
    let manifest_bytes = json.len() as u32;
    wire::PushFrame { manifest: json.into(), manifest_bytes, ..wire::PushFrame::default() }
}

fn data_frame(data: Vec<u8>) -> wire::PushFrame {
    wire::PushFrame { data: data.into(), ..wire::PushFrame::default() }
}

/// A worker held by hand.
struct Hand {
    address: String,
    client: Client,
    _hold: Streaming<wire::HoldEvent>,
}

impl Hand {
    async fn take(worker: &TestWorker) -> Self {
        let mut client = dial(&worker.address, Tag::default()).await.expect("it listens");
        let request = wire::HoldRequest { master_name: "by hand".to_owned(), ..Default::default() };
        let mut hold = client.hold(request).await.expect("nobody else has it").into_inner();
        let granted = hold.message().await.expect("a lease").expect("a lease");
        let client = dial(&worker.address, Tag::lease(&granted.lease)).await.expect("listens");
        Self { address: worker.address.clone(), client, _hold: hold }
    }

    /// Sends these frames and nothing more; the status that ends the push.
    async fn push(&mut self, frames: Vec<wire::PushFrame>) -> Status {
        push(&mut self.client, frames).await
    }
}

async fn push(client: &mut Client, frames: Vec<wire::PushFrame>) -> Status {
    let mut events = match client.push(tokio_stream::iter(frames)).await {
        Ok(events) => events.into_inner(),
        Err(status) => return status,
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(event) if event.stored => panic!("the worker stored it"),
            Ok(_) => {}
            Err(status) => return status,
        }
    }
    panic!("the push ended without a word")
}

/// Plays pushes by hand, then lets a real master show that the worker is as good as new.
#[track_caller]
fn refuses(play: impl AsyncFn(&mut Hand, &Layer) -> (Status, Code)) -> Status {
    let golden = golden("llama");
    let worker = TestWorker::new("a");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let status = runtime.block_on(async {
        let mut hand = Hand::take(&worker).await;
        let (status, code) = play(&mut hand, &Layer::of(&golden)).await;
        assert_eq!(status.code(), code, "{status:?}");
        status
    });
    assert!(!status.message().is_empty() && !status.message().contains("::"), "{status:?}");
    let held = HeldBlobs::at_rest(&worker);
    assert!(held.whole.is_empty(), "{held:?}");
    runtime.shutdown_background();
    let answer = Master::over([&worker]).answer(&golden, &[], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
    assert!(HeldBlobs::of(worker.store()).partial.is_empty());
    assert!(worker.alive());
    status
}

#[test]
fn a_blob_with_a_wrong_byte() {
    let status = refuses(async |hand, layer| {
        let mut wrong = Layer { manifest: layer.manifest.clone(), bytes: layer.bytes.clone() };
        let middle = wrong.bytes.len() / 2;
        wrong.bytes[middle] ^= 1;
        (hand.push(wrong.frames()).await, Code::DataLoss)
    });
    assert_says(status.message(), &["blob"]);
}

#[test]
fn a_blob_that_breaks_off() {
    let status = refuses(async |hand, layer| {
        let mut frames = layer.frames();
        frames.truncate(frames.len() / 2);
        (hand.push(frames).await, Code::Cancelled)
    });
    assert_says(status.message(), &["ended early"]);
}

#[test]
fn a_blob_longer_than_its_manifest_says() {
    refuses(async |hand, layer| {
        let mut frames = layer.frames();
        frames.push(data_frame(vec![0; 100]));
        (hand.push(frames).await, Code::Internal)
    });
}

#[test]
fn a_push_that_begins_with_data() {
    refuses(async |hand, layer| {
        (hand.push(layer.frames().split_off(1)).await, Code::InvalidArgument)
    });
}

#[test]
fn a_push_without_a_word() {
    refuses(async |hand, _| (hand.push(Vec::new()).await, Code::InvalidArgument));
}

#[test]
fn a_manifest_that_is_not_json() {
    refuses(async |hand, _| {
        let frames = vec![manifest_frame(b"rubbish".to_vec())];
        (hand.push(frames).await, Code::InvalidArgument)
    });
}

#[test]
fn a_manifest_in_pieces_that_is_longer_or_shorter_than_it_said() {
    for claimed in [10, 1000] {
        refuses(async |hand, _| {
            let mut frames = vec![manifest_frame(vec![b' '; 7]), manifest_frame(vec![b' '; 7])];
            frames[0].manifest_bytes = claimed;
            (hand.push(frames).await, Code::InvalidArgument)
        });
    }
    let status = refuses(async |hand, _| {
        let mut frame = manifest_frame(vec![b' '; 7]);
        frame.manifest_bytes = u32::MAX;
        (hand.push(vec![frame]).await, Code::InvalidArgument)
    });
    assert_says(status.message(), &["16777216", "4294967295"]);
}

#[test]
fn a_manifest_that_promises_more_than_any_disk_has() {
    refuses(async |hand, layer| {
        let mut json: serde_json::Value =
            serde_json::from_slice(&layer.manifest.to_json()).expect("a manifest is JSON");
        json["file_bytes"] = serde_json::json!(u64::MAX);
        let frames = vec![manifest_frame(json.to_string().into_bytes())];
        (hand.push(frames).await, Code::InvalidArgument)
    });
}

#[test]
fn a_push_without_a_lease() {
    let status = refuses(async |hand, layer| {
        let stolen = Tag::lease("00000000000000000000000000000000");
        // A second caller, while the first is there.
        let mut other = dial(&hand.address, stolen).await.expect("it listens");
        (push(&mut other, layer.frames()).await, Code::FailedPrecondition)
    });
    assert_says(status.message(), &["by hand"]);
}
