//! Workers that are not there, too small, taken, or gone in the middle.
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{
    CountingProxy, HeldBlobs, Master, ModelShape, TestWorker, WorkerOptions, golden, model,
};

use super::{assert_says, dead_address};

const LIMIT: Duration = Duration::from_secs(120);
/// Tokens of an answer during which something happens.
const TOKENS: usize = 200;

#[test]
fn an_unreachable_worker_is_named() {
    let address = dead_address();
    let llama = path(&golden("llama").path);
    let sentence = Master::at([&address]).run(&["run", &llama, "hello", "--json"]).refusal();
    assert_says(&sentence, &[&address]);
}

#[test]
fn all_unreachable_workers_are_named_and_the_reachable_one_is_not_kept() {
    let worker = TestWorker::new("a");
    let dead = [dead_address(), dead_address()];
    let master = Master::at([&dead[0], &worker.address, &dead[1]]);
    let llama = golden("llama");
    let sentences = master.run(&["push", &path(&llama.path), "--json"]).refusals();
    assert_eq!(sentences.len(), 2, "one for each: {sentences:?}");
    for (sentence, address) in sentences.iter().zip(&dead) {
        assert_says(sentence, &[address]);
    }
    let answer = Master::over([&worker]).answer(&llama, &[], &[]);
    assert_eq!(answer.output_ids, llama.greedy_ids);
}

#[test]
fn a_budget_too_small_for_one_layer_names_the_device_and_the_numbers() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("written");
    // The process itself takes 40 MiB of the offer; a layer has 6 MiB.
    let memory = 43 << 20;
    let worker = TestWorker::start("phone", WorkerOptions { memory, ..WorkerOptions::default() });
    let master = Master::over([&worker]);
    let sentence = master.run(&["push", &path(home.path()), "--json"]).refusal();
    assert_says(&sentence, &["phone", "43", "MiB"]);
    assert_eq!(HeldBlobs::of(worker.store()), HeldBlobs::default());
}

#[test]
fn a_worker_held_by_another_master_names_the_holder() {
    let worker = TestWorker::new("a");
    let llama = golden("llama");
    let first = Master::over([&worker]);
    let mut chat = first.start(&["chat", &path(&llama.path)]);
    chat.wait_for("Type a message", LIMIT);
    let second = Master::over([&worker]);
    let sentence = second.run(&["run", &path(&llama.path), "hello", "--json"]).refusal();
    assert_says(&sentence, &[&worker.address, "\"a\"", &format!("process {}", chat.pid())]);
    chat.finish(LIMIT).success();
    assert_eq!(second.answer(&llama, &[], &[]).output_ids, llama.greedy_ids);
}

#[test]
fn a_killed_master_frees_its_workers_at_once() {
    let worker = TestWorker::new("a");
    let llama = golden("llama");
    let first = Master::over([&worker]);
    let mut chat = first.start(&["chat", &path(&llama.path)]);
    chat.wait_for("Type a message", LIMIT);
    chat.kill();
    let answer = Master::over([&worker]).answer(&llama, &[], &[]);
    assert_eq!(answer.output_ids, llama.greedy_ids);
}

#[test]
fn a_worker_that_dies_during_an_answer_is_named_and_the_others_stay() {
    let llama = golden("llama");
    let first = TestWorker::new("first");
    let mut second = TestWorker::new("second");
    let proxy = CountingProxy::start(&second.address);
    let master = Master::at([&first.address, &proxy.address]);
    let place = [("first", 0, 2), ("second", 2, 5)];
    master.push(&llama.path, &place);
    proxy.reset();
    let whole = master.answer_of(&llama.path, &llama.prompt_ids, TOKENS, &place, &[]);
    assert_eq!(whole.output_ids.len(), TOKENS);
    let middle = proxy.to_worker() + proxy.to_worker() / 2;
    proxy.hold_at(middle);
    let pins = cake_tests::master::pins(&place);
    let run = cake_tests::master::answer_args(&llama.path, &llama.prompt_ids, TOKENS);
    let running = master.start(&cake_tests::master::strs(&[run, pins].concat()));
    proxy.wait_for(middle, LIMIT);
    second.kill();
    proxy.break_all();
    // Whoever notices first, the master or the worker before: the one that died is named.
    assert_says(&running.finish(LIMIT).refusal(), &["lost worker \"second\""]);
    let answer = Master::over([&first]).answer(&llama, &[], &[]);
    assert_eq!(answer.output_ids, llama.greedy_ids, "the other worker is free and well");
}

#[test]
fn doctor_names_the_dead_worker_and_a_fix() {
    let worker = TestWorker::new("kitchen");
    let dead = dead_address();
    let finished = Master::at([&worker.address, &dead]).run(&["doctor"]);
    let failed: Vec<&str> =
        finished.stdout.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert_eq!(failed.len(), 1, "{}", finished.stdout);
    assert_says(failed[0], &[&dead, "->", "cake-worker"]);
    assert_says(&finished.stdout, &["kitchen"]);
    assert_says(&finished.refusal(), &["1 of"]);
    let checks = Master::at([&worker.address, &dead]).run(&["doctor", "--json"]);
    let checks: serde_json::Value = serde_json::from_str(&checks.stdout).expect("JSON");
    let checks = checks.as_array().expect("a list");
    assert_eq!(checks.iter().filter(|check| check["ok"] == false).count(), 1);
}

#[test]
fn doctor_is_content_with_workers_that_reach_each_other() {
    let workers = TestWorker::several(&["kitchen", "attic"]);
    let finished = Master::over(&workers).run(&["doctor"]).success();
    assert_says(&finished.stdout, &["reaches attic", "reaches kitchen"]);
    assert!(!finished.stdout.contains("FAIL"), "{}", finished.stdout);
}
