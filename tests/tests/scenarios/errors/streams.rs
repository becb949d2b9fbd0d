//! Streams of steps whose lease, stage or pipeline is not theirs, by a master played by hand.
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cake_checkpoint::{BlobSource, Checkpoint};
use cake_proto::step::announcement_frame;
use cake_proto::{Client, Tag, wire};
use cake_tests::master::path;
use cake_tests::{Golden, Master, TestWorker, dial, golden};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::assert_says;

/// Longer than anything here takes, shorter than a step's own deadline.
const SOON: Duration = Duration::from_secs(120);
const GENERATION: u64 = 1;

/// Layer 0 of a golden model on a worker held by hand; its blob is there already.
struct Loaded {
    client: Client,
    hold: Streaming<wire::HoldEvent>,
    request: wire::LoadRequest,
}

impl Loaded {
    async fn hold(worker: &TestWorker, golden: &Golden) -> Self {
        let mut client = dial(&worker.address, Tag::default()).await.expect("it listens");
        let request = wire::HoldRequest { master_name: "by hand".to_owned(), ..Default::default() };
        let hold = loop {
            match client.hold(request.clone()).await {
                Ok(hold) => break hold,
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{status:?}"),
            }
        };
        let mut hold = hold.into_inner();
        let lease = hold.message().await.expect("a lease").expect("a lease").lease;
        let client = dial(&worker.address, Tag::lease(&lease)).await.expect("it listens");
        let checkpoint = Checkpoint::open(&path(&golden.path)).expect("a checkpoint");
        let manifest = BlobSource::new(&checkpoint, 0).manifest().expect("readable");
        let request = wire::LoadRequest {
            generation: GENERATION,
            model: checkpoint.config.to_wire().into(),
            layer_start: 0,
            layer_end: 1,
            blobs: vec![manifest.name().to_string()],
            kv_dtype: "f32".to_owned(),
            kv_blocks: 4,
            state_slots: 0,
            max_positions: 64,
            max_rows: 8,
            planned_bytes: 1,
            numerics: "exact".into(),
            wire: 0,
            device: "cpu".to_owned(),
        };
        Self { client, hold, request }
    }

    async fn load(&mut self) -> Result<(), Status> {
        let (last, _) = self.load_whatever_is_there().await?;
        assert!(last.corrupt.is_empty(), "{last:?}");
        Ok(())
    }

    /// How it ended, and whether it was told of bytes that were hashed.
    async fn load_whatever_is_there(&mut self) -> Result<(wire::LoadEvent, bool), Status> {
        let mut events = self.client.load(self.request.clone()).await?.into_inner();
        let mut hashed = false;
        while let Some(event) = events.message().await? {
            if event.done {
                return Ok((event, hashed));
            }
            hashed |= event.verified_bytes > 0;
        }
        panic!("the load ended without a word")
    }

    async fn release(&mut self, forget: bool) {
        self.client.release(wire::ReleaseRequest { forget }).await.expect("unloaded");
    }

    fn probe(&self) -> wire::ProbeComputeRequest {
        let model = self.request.model.clone();
        let (encoding, device) = ("F32".to_owned(), "cpu".to_owned());
        wire::ProbeComputeRequest { model, encoding, layers: 1, device }
    }
}

fn with_held_blob(play: impl AsyncFn(&TestWorker, Loaded)) {
    let golden = golden("llama");
    let worker = TestWorker::new("a");
    Master::over([&worker]).push(&golden.path, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { play(&worker, Loaded::hold(&worker, &golden).await).await });
    runtime.shutdown_background();
    let answer = Master::over([&worker]).answer(&golden, &[], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
}

#[test]
fn a_stream_of_steps_ends_with_its_lease() {
    with_held_blob(async |_, mut loaded| {
        loaded.load().await.expect("loaded");
        let (_frames, outgoing) = mpsc::channel::<wire::StepFrame>(1);
        let answers = loaded.client.steps(ReceiverStream::new(outgoing)).await.expect("open");
        let mut answers = answers.into_inner();
        drop(loaded.hold); // The connection of the lease dies; that of the steps lives on.
        let told = tokio::time::timeout(SOON, answers.message()).await.expect("told soon");
        let status = told.expect_err("not an answer");
        assert_says(status.message(), &["no stage loaded"]);
    });
}

#[test]
fn that_a_step_will_come_is_said_alone() {
    with_held_blob(async |_, mut loaded| {
        loaded.load().await.expect("loaded");
        let (frames, outgoing) = mpsc::channel(2);
        let answers = loaded.client.steps(ReceiverStream::new(outgoing)).await.expect("open");
        frames.send(announcement_frame()).await.expect("taken");
        let more = wire::StepFrame { step: 7, ..announcement_frame() };
        frames.send(more).await.expect("taken");
        let mut answers = answers.into_inner();
        let told = tokio::time::timeout(SOON, answers.message());
        let status = told.await.expect("told soon").expect_err("not an answer");
        assert_says(status.message(), &["announces a step", "expected nothing else"]);
    });
}

#[test]
fn a_stage_is_not_unloaded_to_time_the_device() {
    with_held_blob(async |_, mut loaded| {
        let request = loaded.probe();
        loaded.client.probe_compute(request.clone()).await.expect("timed");
        loaded.load().await.expect("loaded");
        let status = loaded.client.probe_compute(request).await.expect_err("refused");
        assert_says(status.message(), &["a stage is at work here"]);
        let (_frames, outgoing) = mpsc::channel::<wire::StepFrame>(1);
        loaded.client.steps(ReceiverStream::new(outgoing)).await.expect("it is still loaded");
    });
}

#[test]
fn a_blob_that_was_computed_with_is_hashed_again_if_somebody_wrote_to_it() {
    with_held_blob(async |worker, mut loaded| {
        let hashed = async |loaded: &mut Loaded| {
            let (last, hashed) = loaded.load_whatever_is_there().await.expect("an end");
            (last.corrupt, hashed)
        };
        assert_eq!(hashed(&mut loaded).await, (Vec::new(), true));
        loaded.release(false).await;
        assert_eq!(hashed(&mut loaded).await, (Vec::new(), false));
        loaded.release(false).await;
        loaded.release(false).await; // A master that tries again says it again.
        assert_eq!(hashed(&mut loaded).await, (Vec::new(), false));
        loaded.release(false).await;
        loaded.client.probe_compute(loaded.probe()).await.expect("timed"); // It needs the memory.
        assert_eq!(hashed(&mut loaded).await, (Vec::new(), true));
        loaded.release(false).await;
        loaded.release(true).await;
        assert_eq!(hashed(&mut loaded).await, (Vec::new(), true));
        loaded.release(false).await;

        let name = loaded.request.blobs[0].clone();
        let file = worker.store().join(format!("blobs/{name}.safetensors"));
        let bytes = std::fs::read(&file).expect("a blob");
        let file = std::fs::File::options().write(true).open(&file).expect("writable");
        let last = bytes.len() - 1;
        file.write_all_at(&[bytes[last] ^ 1], last as u64).expect("written");
        assert_eq!(hashed(&mut loaded).await, (vec![name], true));
    });
}

#[test]
fn a_stage_takes_no_steps_from_another_pipeline() {
    with_held_blob(async |worker, mut loaded| {
        loaded.load().await.expect("loaded");
        for token in ["", "somebody else's"] {
            let stranger = dial(&worker.address, Tag::pipeline(token)).await;
            let frames = tokio_stream::iter(Vec::<wire::StepFrame>::new());
            let status = stranger.expect("it listens").forward(frames).await.expect_err("refused");
            assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        }
    });
}

#[test]
fn a_load_beyond_the_offer_is_refused_with_both_numbers() {
    with_held_blob(async |_, mut loaded| {
        loaded.request.planned_bytes = 3 << 30; // The worker offers 1 GiB.
        let status = loaded.load().await.expect_err("refused");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert_says(status.message(), &["3 GiB", "1 GiB"]);
    });
}

#[test]
fn a_load_with_numbers_that_do_not_agree_names_the_field() {
    with_held_blob(async |_, mut loaded| {
        let good = loaded.request.clone();
        let bad = [
            ("layer_end", wire::LoadRequest { layer_end: 999, ..good.clone() }),
            ("layer_start", wire::LoadRequest { layer_start: 1, ..good.clone() }),
            ("blobs", wire::LoadRequest { blobs: vec![], ..good.clone() }),
            ("blob", wire::LoadRequest { blobs: vec!["zz".to_owned()], ..good.clone() }),
            ("kv_dtype", wire::LoadRequest { kv_dtype: "f8".to_owned(), ..good.clone() }),
            ("kv_blocks", wire::LoadRequest { kv_blocks: u32::MAX, ..good.clone() }),
            ("max_rows", wire::LoadRequest { max_rows: u32::MAX, ..good.clone() }),
            ("max_positions", wire::LoadRequest { max_positions: u32::MAX, ..good.clone() }),
            ("wire", wire::LoadRequest { wire: 99, ..good.clone() }),
            ("device", wire::LoadRequest { device: "abacus".to_owned(), ..good.clone() }),
            ("device", wire::LoadRequest { device: String::new(), ..good.clone() }),
        ];
        for (field, request) in bad {
            loaded.request = request;
            let status = loaded.load().await.expect_err(field);
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            assert_says(status.message(), &[field]);
        }
        loaded.request = good;
        loaded.load().await.expect("nothing of that did harm");
    });
}
