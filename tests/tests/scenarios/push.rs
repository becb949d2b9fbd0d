//! Blobs cross the wire once and no byte too many, whatever breaks on the way.
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use cake_checkpoint::{BlobSource, Checkpoint, Dtype};
use cake_proto::limits;
use cake_tests::master::{Answer, path};
use cake_tests::model::Experts;
use cake_tests::{
    CountingProxy, HeldBlobs, Master, ModelShape, TestWorker, WorkerOptions, golden, model,
};
use tempfile::TempDir;

/// Bytes on the wire for each byte of tensors.
const WIRE_BAR: f64 = 1.01;
/// Part of the weights that a master may read when the workers have everything.
const READ_BAR: f64 = 0.01;
/// Sent again, beyond what is missing, of each blob under way.
const RESUME_BYTES: u64 = 1 << 20;
/// A worker's part of one push beside the blobs: manifests, queries, HTTP/2.
const TALK_BYTES: u64 = 128 << 10;
const SEED: u64 = 7;
const PROMPT: &[u32] = &[0, 169, 81, 206, 337];
const TOKENS: usize = 6;
const LIMIT: Duration = Duration::from_secs(120);

/// 8 layers of 6 MiB.
fn small_model() -> (TempDir, ModelShape) {
    println!("seed {SEED}");
    let home = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    let shape = ModelShape::small();
    model::make(home.path(), &shape, SEED).expect("the model can be written");
    (home, shape)
}

/// Length of each layer's blob.
fn blob_bytes(model: &Path) -> Vec<u64> {
    let checkpoint = Checkpoint::open(&path(model)).expect("a checkpoint");
    let layers = 0..checkpoint.config.layers.len();
    layers.map(|layer| BlobSource::new(&checkpoint, layer).file_bytes()).collect()
}

fn pushed(report: &serde_json::Value) -> Vec<(String, u64)> {
    let workers = report["pushed"].as_array().expect("one for each worker");
    let one = |worker: &serde_json::Value| {
        let name = worker["worker"].as_str().expect("a name").to_owned();
        (name, worker["pushed_bytes"].as_u64().expect("bytes"))
    };
    workers.iter().map(one).collect()
}

fn alone(model: &Path) -> Answer {
    Master::alone().answer_of(model, PROMPT, TOKENS, &[], &[])
}

#[track_caller]
fn assert_answers_like_one_process(master: &Master, model: &Path, place: &[(&str, usize, usize)]) {
    let (alone, split) = (alone(model), master.answer_of(model, PROMPT, TOKENS, place, &[]));
    assert_eq!(split.output_ids, alone.output_ids);
    assert_eq!(split.logprob_bits, alone.logprob_bits);
}

#[test]
fn the_wire_carries_the_assigned_tensors_and_little_else() {
    let (model, shape) = small_model();
    let workers = TestWorker::several(&["a", "b"]);
    let proxies: Vec<_> = workers.iter().map(|w| CountingProxy::start(&w.address)).collect();
    let master = Master::at(proxies.iter().map(|proxy| &proxy.address));
    let place = [("a", 0, 3), ("b", 3, 8)];
    // Measuring a new worker sends it a MiB or two once: a part of planning, not of this push.
    master.run(&["plan", &path(model.path())]).success();
    proxies.iter().for_each(CountingProxy::reset);
    let report = master.push(model.path(), &place);
    for ((worker, proxy), layers) in workers.iter().zip(&proxies).zip([3, 5]) {
        let tensors = layers * shape.layer_bytes();
        let held = HeldBlobs::of(worker.store());
        assert_eq!(held.whole.len() as u64, layers, "{} holds its layers alone", worker.name);
        assert!(held.partial.is_empty());
        assert!(held.whole_bytes() as f64 <= tensors as f64 * 1.001, "blobs: {held:?}");
        let ratio = proxy.to_worker() as f64 / tensors as f64;
        println!("{}: {ratio:.5} bytes on the wire for each byte of tensors", worker.name);
        assert!(ratio <= WIRE_BAR, "{}: {ratio}", worker.name);
    }
    let blobs = blob_bytes(model.path());
    let expected = [("a", blobs[..3].iter().sum()), ("b", blobs[3..].iter().sum::<u64>())];
    assert_eq!(pushed(&report), expected.map(|(name, bytes)| (name.to_owned(), bytes)));
}

#[test]
fn a_second_run_sends_no_blob_and_reads_no_weights() {
    let (model, shape) = small_model();
    let workers = TestWorker::several(&["a", "b"]);
    let proxies: Vec<_> = workers.iter().map(|w| CountingProxy::start(&w.address)).collect();
    let master = Master::at(proxies.iter().map(|proxy| &proxy.address));
    let place = [("a", 0, 4), ("b", 4, 8)];
    let first = master.answer_of(model.path(), PROMPT, TOKENS, &place, &[]);
    let blobs: u64 = blob_bytes(model.path()).iter().sum();
    assert_eq!((first.pushed_bytes, first.reused_bytes), (blobs, 0));
    proxies.iter().for_each(CountingProxy::reset);
    let second = master.answer_of(model.path(), PROMPT, TOKENS, &place, &[]);
    assert_eq!((second.pushed_bytes, second.reused_bytes), (0, blobs));
    assert_eq!((second.output_ids, second.logprob_bits), (first.output_ids, first.logprob_bits));
    for proxy in &proxies {
        assert!(proxy.to_worker() <= TALK_BYTES, "{} bytes to a worker", proxy.to_worker());
    }
    // The system counts what the master reads, by calls and from the disk, of a file that no cache holds.
    evict(&model.path().join("model.safetensors"));
    let allowed = (shape.bytes() as f64 * READ_BAR) as u64;
    let pins = ["--place", "a=0..4", "--place", "b=4..8", "--json"];
    let push = master.run(&[&["push", &path(model.path())], &pins[..]].concat()).success();
    println!(
        "second push: {} bytes by read calls, {} from the disk, of {}",
        push.read_call_bytes,
        push.disk_read_bytes,
        shape.bytes()
    );
    assert!(push.read_call_bytes > 0, "the system does not count reads here");
    assert!(push.read_call_bytes <= allowed, "{} bytes read", push.read_call_bytes);
    assert!(push.disk_read_bytes <= allowed, "{} bytes from the disk", push.disk_read_bytes);
}

/// Forgets the cached pages of a file.
fn evict(file: &Path) {
    let file = OpenOptions::new().read(true).open(file).expect("the file is there");
    file.sync_all().expect("its pages are on the disk");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
}

#[test]
fn a_layer_whose_manifest_is_longer_than_a_message_is_pushed_and_computed_with() {
    println!("seed {SEED}");
    let model = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    // As many as a layer may have; all matrices as wide as high, as weights of one spread are made up much faster.
    const WIDTH: usize = 32;
    let experts = Some(Experts { count: 4096, chosen: 3, inner_size: WIDTH });
    let tiny = ModelShape { hidden_size: WIDTH, dtype: Dtype::BF16, ..ModelShape::tiny() };
    let shape = ModelShape { experts, layers: 1, ..tiny };
    model::make(model.path(), &shape, SEED).expect("the model can be written");
    let worker = TestWorker::new("a");
    let master = Master::over([&worker]);
    let split = master.answer_of(model.path(), PROMPT, TOKENS, &[("a", 0, 1)], &[]);
    assert_eq!(split.pushed_bytes, blob_bytes(model.path())[0]);
    let (blob, _) = HeldBlobs::of(worker.store()).whole.swap_remove(0);
    let manifest = std::fs::metadata(blob.with_extension("json")).expect("beside it").len();
    assert!(manifest > limits::MESSAGE_BYTES as u64, "{manifest} bytes");
    let alone = alone(model.path());
    assert_eq!((split.output_ids, split.logprob_bits), (alone.output_ids, alone.logprob_bits));
}

#[test]
fn a_plan_moved_by_one_layer_sends_that_layer() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let blobs = blob_bytes(&golden.path);
    master.push(&golden.path, &[("a", 0, 5), ("b", 5, 12)]);
    let moved = [("a", 0, 6), ("b", 6, 12)];
    let report = master.push(&golden.path, &moved);
    assert_eq!(pushed(&report), [("a".to_owned(), blobs[5]), ("b".to_owned(), 0)]);
    let answer = master.answer(&golden, &moved, &[]);
    assert_eq!((answer.output_ids, answer.pushed_bytes), (golden.greedy_ids.clone(), 0));
}

#[test]
fn a_push_goes_on_where_a_killed_master_left_it() {
    let (model, _) = small_model();
    let worker = TestWorker::new("a");
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([&proxy.address]);
    let total: u64 = blob_bytes(model.path()).iter().sum();
    proxy.hold_at(total / 2);
    let pushing = master.start(&["push", &path(model.path())]);
    proxy.wait_for(total / 2, LIMIT);
    pushing.kill();
    proxy.break_all();
    goes_on(&master, &proxy, &worker, model.path(), total);
}

#[test]
fn a_push_goes_on_after_its_connection_broke_and_the_master_said_so() {
    let (model, _) = small_model();
    let worker = TestWorker::new("kitchen");
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([&proxy.address]);
    let total: u64 = blob_bytes(model.path()).iter().sum();
    proxy.cut_at(total / 2);
    let refusal = master.run(&["push", &path(model.path()), "--json"]).refusal();
    assert!(refusal.contains("kitchen"), "names the worker: {refusal}");
    goes_on(&master, &proxy, &worker, model.path(), total);
}

#[test]
fn a_push_goes_on_after_the_worker_was_killed_and_came_back() {
    let (model, _) = small_model();
    let home = TempDir::with_prefix("cake-worker-").expect("a temporary folder");
    let start = || {
        let directory = Some(home.path().to_owned());
        TestWorker::start("a", WorkerOptions { directory, ..WorkerOptions::default() })
    };
    let mut worker = start();
    let proxy = CountingProxy::start(&worker.address);
    let mut master = Master::at([&proxy.address]);
    let total: u64 = blob_bytes(model.path()).iter().sum();
    proxy.hold_at(total / 2);
    let pushing = master.start(&["push", &path(model.path()), "--json"]);
    proxy.wait_for(total / 2, LIMIT);
    worker.kill();
    proxy.break_all();
    let refusal = pushing.finish(LIMIT).refusal();
    assert!(refusal.contains("\"a\""), "names the worker: {refusal}");
    let worker = start();
    let proxy = CountingProxy::start(&worker.address);
    master.now_at([&proxy.address]);
    goes_on(&master, &proxy, &worker, model.path(), total);
}

/// The second push after one that ended half way: sends what is missing, leaves nothing half done.
#[track_caller]
fn goes_on(master: &Master, proxy: &CountingProxy, worker: &TestWorker, model: &Path, total: u64) {
    let held = HeldBlobs::at_rest(worker);
    let missing = total - held.whole_bytes() - held.partial_bytes();
    println!("{} of {total} bytes arrived, {missing} are missing", total - missing);
    assert!(missing < total * 3 / 4, "half of it was sent, yet {missing} of {total} are missing");
    assert!(missing > total / 4, "the first push was not interrupted");
    proxy.heal();
    // A new measurement is no part of what is sent again.
    master.run(&["plan", &path(model)]).success();
    proxy.reset();
    let report = master.push(model, &[]);
    let sent = pushed(&report)[0].1;
    assert!(sent <= missing + RESUME_BYTES, "{sent} bytes sent, {missing} were missing");
    let wire = proxy.to_worker();
    let bar = ((missing + RESUME_BYTES) as f64 * WIRE_BAR) as u64 + TALK_BYTES;
    assert!(wire <= bar, "{wire} bytes on the wire, {missing} were missing");
    let held = HeldBlobs::of(worker.store());
    assert_eq!(held.whole_bytes(), total);
    assert!(held.partial.is_empty(), "half a blob is left: {held:?}");
    assert_answers_like_one_process(master, model, &[]);
}

#[test]
fn a_blob_damaged_on_disk_is_found_and_sent_again() {
    let golden = golden("llama-sharded");
    let worker = TestWorker::new("a");
    let proxy = CountingProxy::start(&worker.address);
    let master = Master::at([&proxy.address]);
    assert_eq!(master.answer(&golden, &[], &[]).output_ids, golden.greedy_ids);
    let (blob, bytes) = HeldBlobs::of(worker.store()).whole.swap_remove(4);
    flip_a_bit(&blob, bytes / 2);
    proxy.reset();
    let answer = master.answer(&golden, &[], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
    assert_eq!(answer.pushed_bytes, bytes, "the damaged blob and no other");
    assert!(proxy.to_worker() >= bytes, "it came over the wire");
    proxy.reset();
    let answer = master.answer(&golden, &[], &[]);
    assert_eq!((answer.output_ids, answer.pushed_bytes), (golden.greedy_ids.clone(), 0));
}

#[test]
fn blobs_damaged_on_two_workers_are_all_sent_again() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let place = [("a", 0, 6), ("b", 6, 12)];
    master.push(&golden.path, &place);
    let mut damaged = 0;
    for worker in &workers {
        for (blob, bytes) in &HeldBlobs::of(worker.store()).whole[2..4] {
            flip_a_bit(blob, bytes - 1);
            damaged += bytes;
        }
    }
    let answer = master.answer(&golden, &place, &[]);
    assert_eq!((answer.output_ids, answer.pushed_bytes), (golden.greedy_ids.clone(), damaged));
}

#[test]
fn a_blob_cut_short_on_disk_is_sent_again_by_a_worker_that_came_back() {
    let golden = golden("llama-sharded");
    let home = TempDir::with_prefix("cake-worker-").expect("a temporary folder");
    let start = || {
        let directory = Some(home.path().to_owned());
        TestWorker::start("a", WorkerOptions { directory, ..WorkerOptions::default() })
    };
    let mut worker = start();
    let mut master = Master::over([&worker]);
    master.push(&golden.path, &[]);
    worker.kill();
    let held = HeldBlobs::of(worker.store());
    let (blob, bytes) = held.whole[2].clone();
    let file = OpenOptions::new().write(true).open(&blob).expect("the blob is there");
    file.set_len(bytes / 2).expect("it can be cut");
    let worker = start();
    master.now_at([&worker.address]);
    let answer = master.answer(&golden, &[], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
    assert!((1..=bytes).contains(&answer.pushed_bytes), "{} bytes sent", answer.pushed_bytes);
    assert_eq!(HeldBlobs::of(worker.store()), held);
}

#[test]
fn stores_of_workers_survive_and_are_listed_and_pruned() {
    let golden = golden("llama");
    let worker = TestWorker::new("a");
    let master = Master::over([&worker]);
    master.push(&golden.path, &[]);
    let store = path(worker.store());
    drop_process(worker, |directory| {
        let tool = |args: &[&str]| {
            let mut command = std::process::Command::new(&cake_tests::programs().worker);
            command.args(args).current_dir(directory);
            cake_tests::Running::start(&mut command).finish(LIMIT)
        };
        let listed = tool(&["store", "list", "--store", &store, "--json"]).json().to_string();
        for (blob, _) in HeldBlobs::of(Path::new(&store)).whole {
            let name = blob.file_stem().and_then(|stem| stem.to_str()).expect("a digest");
            assert!(listed.contains(name), "{name} is not listed: {listed}");
        }
        tool(&["store", "prune", "--store", &store]).success();
        assert_eq!(HeldBlobs::of(Path::new(&store)), HeldBlobs::default());
    });
}

/// Ends the worker, then does something in its directory, which goes away afterwards.
fn drop_process(mut worker: TestWorker, then: impl FnOnce(&Path)) {
    worker.kill();
    then(worker.directory());
}

fn flip_a_bit(file: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).expect("the blob is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("within the blob");
    file.write_all_at(&[byte[0] ^ 0x10], offset).expect("written");
}

#[test]
fn tensors_that_a_worker_holds_in_other_blobs_are_not_sent_again() {
    let (model, shape) = small_model();
    let tuned = TempDir::with_prefix("cake-model-").expect("a temporary folder");
    model::make(tuned.path(), &shape, SEED).expect("the same model once more");
    let checkpoint = Checkpoint::open(&path(tuned.path())).expect("a checkpoint");
    let layer = checkpoint.layer_tensors(3);
    let changed = layer.iter().find(|tensor| tensor.name.contains("o_proj")).expect("Llama has it");
    // One value of one tensor differs, as if only that had been trained further.
    let file = OpenOptions::new().write(true).open(&checkpoint.files[changed.file].path);
    file.expect("ours").write_all_at(&[0x11, 0x3c], changed.offset).expect("written");
    let worker = TestWorker::new("a");
    let master = Master::over([&worker]);
    master.push(model.path(), &[]);
    let report = master.push(tuned.path(), &[]);
    let sent = pushed(&report)[0].1;
    println!("{sent} bytes sent for a tensor of {}", changed.bytes);
    assert!(sent >= changed.bytes && sent <= changed.bytes + (64 << 10), "{sent} bytes sent");
    assert_answers_like_one_process(&master, tuned.path(), &[]);
    assert_answers_like_one_process(&master, model.path(), &[]);
}
