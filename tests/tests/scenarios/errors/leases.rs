//! Names, addresses, limits and leases that two parties could take differently.
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{HeldBlobs, Master, ModelShape, TestWorker, WorkerOptions, golden, model, until};

use super::assert_says;

const LIMIT: Duration = Duration::from_secs(60);
/// What a layer of the small model has, at most.
const LAYER_BYTES: u64 = 8 << 20;

#[test]
fn a_worker_called_master_is_not_taken_for_the_master() {
    let worker = TestWorker::new("master");
    let llama = golden("llama");
    let answer = Master::over([&worker]).answer(&llama, &[], &[]);
    assert_eq!(answer.output_ids, llama.greedy_ids);
    let both = ["--local-memory", "64MiB", "--place", "master=0..2"];
    let answer = Master::over([&worker]).answer(&llama, &[("master-2", 2, 5)], &both);
    assert_eq!(answer.output_ids, llama.greedy_ids);
}

#[test]
fn one_worker_under_two_addresses_is_refused() {
    let worker = TestWorker::new("a");
    let other = worker.address.replace("127.0.0.1", "localhost");
    let master = Master::at([&worker.address, &other]);
    let llama = path(&golden("llama").path);
    let sentence = master.run(&["run", &llama, "hello", "--json"]).refusal();
    assert_says(&sentence, &[&worker.address, &other, "same worker"]);
}

#[test]
fn a_plan_beyond_a_stores_limit_is_refused_before_anything_is_sent() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("written"); // 8 layers of 6 MiB.
    let worker = limited("20MiB");
    let master = Master::over([&worker]);
    let sentence = master.run(&["push", &path(home.path()), "--json"]).refusal();
    assert_says(&sentence, &["\"a\"", "20 MiB", "--store-limit"]);
    assert_eq!(HeldBlobs::of(worker.store()), HeldBlobs::default());
}

#[test]
fn a_store_at_its_limit_makes_room_for_the_next_model() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("written");
    let worker = limited("49MiB");
    let master = Master::over([&worker]);
    let llama = golden("llama");
    master.push(&llama.path, &[]);
    master.push(home.path(), &[]);
    let held = HeldBlobs::of(worker.store());
    assert!(held.whole_bytes() <= 49 << 20, "{held:?}");
    assert_eq!(master.answer(&llama, &[], &[]).output_ids, llama.greedy_ids);
}

#[test]
fn masters_killed_at_any_moment_leave_the_worker_to_the_next_one() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("written");
    let worker = TestWorker::new("a");
    let llama = golden("llama");
    let expected = llama.greedy_ids.clone();
    let prompt = ["run", &path(home.path()), "--prompt-ids", "0,1,2", "--ignore-eos"];
    let long = [&prompt[..], &["--max-tokens", "200"]].concat();
    let notes = |what: &str| worker.log().matches(what).count();
    let stored = || HeldBlobs::of(worker.store()).all_bytes();
    let moments = ["start", "lease", "first bytes", "more bytes", "stage", "answer"];
    for moment in moments {
        let (leases, bytes, stages) = (notes("held master="), stored(), notes("loaded"));
        let first = Master::over([&worker]);
        let run = first.start(&long);
        until(moment, LIMIT, || match moment {
            "start" => true,
            "lease" => notes("held master=") > leases,
            // All of them can be there since the moment before.
            "first bytes" => stored() > bytes || notes("loaded") > stages,
            "more bytes" => stored() > bytes + LAYER_BYTES || notes("loaded") > stages,
            "stage" => notes("loaded") > stages,
            _ => !run.stdout().is_empty(),
        });
        run.kill();
        let next = Master::over([&worker]).answer(&llama, &[], &[]);
        assert_eq!(next.output_ids, expected, "killed at its {moment}");
    }
    let long = [&long[..], &["--json"]].concat();
    let whole = Master::over([&worker]).json(&long);
    let alone = Master::alone().json(&long);
    assert_eq!(whole["output_ids"], alone["output_ids"]);
}

/// A worker whose store keeps at most so much.
fn limited(store_limit: &str) -> TestWorker {
    let args = vec!["--store-limit".to_owned(), store_limit.to_owned()];
    TestWorker::start("a", WorkerOptions { args, ..WorkerOptions::default() })
}
