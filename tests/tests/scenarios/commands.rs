//! What the commands tell people and programs, and how they end when nobody listens or waits any more.
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::process::DEADLINE;
use cake_tests::{
    Far, Master, ModelShape, Running, TestWorker, WorkerOptions, golden, model, programs, until,
};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// Starts `command` with a standard output that nobody reads, and waits for its end.
#[track_caller]
fn unheard(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{command:?}: {} {stderr}", ended.status);
    assert!(!stderr.contains("panicked"), "{command:?}: {stderr}");
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let master = Master::alone();
    let llama = path(&golden("llama").path);
    unheard(&mut master.bare(&["inspect", &llama, "--tensors"]));
    unheard(&mut master.bare(&["inspect", &llama, "--json"]));
    unheard(&mut master.bare(&["plan", &llama]));
    unheard(&mut master.bare(&["run", &llama, "hello", "--max-tokens", "5", "--ignore-eos"]));
    unheard(&mut master.bare(&["demo"]));
    let store = path(&master.state().join("store"));
    unheard(Command::new(&programs().worker).args(["store", "list", "--store", &store]));
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("it is there");
    entries.map(|entry| path(&entry.expect("listed").path())).collect()
}

#[test]
fn an_interrupted_extract_leaves_nothing() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape { hidden_size: 1024, intermediate_size: 8192, ..ModelShape::small() };
    model::make(&home.path().join("model"), &shape, 7).expect("the model can be written");
    let out = home.path().join("out");
    std::fs::create_dir(&out).expect("made");
    let file = path(&out.join("layers.safetensors"));
    let model = path(&home.path().join("model"));
    let extracting =
        Master::alone().start(&["extract", &model, "--layers", "0..8", "--out", &file, "--json"]);
    until("extract to begin", LIMIT, || !files(&out).is_empty());
    extracting.signal(Signal::INT);
    let finished = extracting.finish(LIMIT);
    assert_eq!(finished.status.code(), Some(130), "{}", finished.stderr);
    assert_eq!(finished.stderr, "cake-master: interrupted\n");
    let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(said, serde_json::json!({ "error": "interrupted" }));
    assert_eq!(files(&out), [""; 0]);
}

#[test]
fn extract_tells_programs_what_it_wrote() {
    let master = Master::alone();
    let llama = path(&golden("llama").path);
    let file = master.state().join("layers.safetensors");
    let args = ["extract", &llama, "--layers", "1..3", "--out", &path(&file), "--json"];
    let said = master.json(&args);
    assert_eq!(said["layers"], "1..3");
    assert_eq!(said["bytes"], file.metadata().expect("written").len());
}

#[test]
fn a_refusal_is_told_to_programs_in_numbers() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("the model can be written");
    let memory = 43 << 20;
    let worker = TestWorker::start("phone", WorkerOptions { memory, ..WorkerOptions::default() });
    let model = path(home.path());
    for command in ["plan", "push"] {
        let finished = Master::over([&worker]).run(&[command, &model, "--json"]);
        let sentence = finished.refusal();
        let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        assert_eq!(said["error"], sentence);
        assert_eq!(said["refusal"], "does_not_fit");
        assert_eq!(said["devices"][0]["budget_bytes"], memory);
    }
    let finished = Master::alone().run(&["run", "nowhere", "hello", "--json"]);
    let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(said["error"], finished.refusal());
}

#[test]
fn a_worker_called_like_the_master_is_a_worker() {
    let golden = golden("llama");
    let worker = TestWorker::new("master");
    let master = Master::over([&worker]);
    let answer = master.answer(&golden, &[], &[]);
    assert_eq!(answer.output_ids, golden.greedy_ids);
    assert!(answer.pushed_bytes > 0, "the worker runs the layers: {:?}", answer.stages);
    let place = [("master", 0, 2), ("master-2", 2, golden.num_layers)];
    let split = master.answer(&golden, &place, &["--local-memory", "1GiB"]);
    assert_eq!(split.output_ids, golden.greedy_ids);
    assert_eq!(split.logprob_bits, answer.logprob_bits);
    assert_eq!(split.stages.len(), 2, "{:?}", split.stages);
}

#[test]
fn a_worker_too_small_to_be_timed_does_not_end_the_plan() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("the model can be written");
    // The process itself takes 40 MiB of the offer: nothing is left to time a layer in.
    let memory = (40 << 20) + 1;
    let workers = [
        TestWorker::start("crumb", WorkerOptions { memory, ..WorkerOptions::default() }),
        TestWorker::new("tablet"),
    ];
    let finished = Master::over(&workers).run(&["plan", &path(home.path())]).success();
    assert!(finished.stderr.contains("warning: worker \"crumb\""), "{}", finished.stderr);
    assert!(finished.stderr.contains("a usual speed is assumed"), "{}", finished.stderr);
    assert!(finished.stdout.contains("tablet"), "{}", finished.stdout);
    assert!(finished.stdout.contains("crumb has no layers"), "{}", finished.stdout);
}

#[test]
fn the_master_is_timed_within_the_memory_it_may_use() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("the model can be written");
    let worker = TestWorker::new("tablet");
    let args = ["plan", &path(home.path()), "--local-memory", "1KiB"];
    let finished = Master::over([&worker]).run(&args).success();
    assert!(finished.stderr.contains("warning: the master could not"), "{}", finished.stderr);
}

/// Talks with a golden model and returns what people saw on standard error.
fn chat(master: &Master, args: &[&str], turns: &[&str]) -> String {
    let mut chat = master.start(&[&["chat", &path(&golden("llama").path)], args].concat());
    let mut input = chat.stdin().expect("not taken yet");
    for turn in turns {
        writeln!(input, "{turn}").expect("it listens");
    }
    drop(input);
    chat.finish(LIMIT).success().stderr
}

#[test]
fn chat_says_why_an_answer_ended_and_how_to_go_on() {
    let master = Master::alone();
    let stderr = chat(&master, &["--max-tokens", "3", "--ignore-eos"], &["hello"]);
    assert!(stderr.contains("(stopped after 3 tokens)"), "{stderr}");
    let full = ["--context", "64", "--max-tokens", "500", "--ignore-eos"];
    let stderr = chat(&master, &full, &["hello", "and then?"]);
    assert!(stderr.contains("(stopped: the context of 64 tokens is full; a larger --context"));
    assert!(stderr.contains("not told of the oldest turn any more"), "{stderr}");
}

#[test]
fn ctrl_c_stops_an_answer_and_the_chat_goes_on() {
    let far = Far::start();
    let args = ["--context", "1024", "--max-tokens", "900", "--ignore-eos"];
    let mut chat =
        far.master.start(&[&["chat", &path(&far.model)][..], &Far::PLACE, &args].concat());
    let mut input = chat.stdin().expect("not taken yet");
    writeln!(input, "hello").expect("it listens");
    until("an answer to begin", LIMIT, || chat.stdout().len() > 20);
    chat.signal(Signal::INT);
    until("the answer to stop", LIMIT, || chat.stderr().contains("(stopped)"));
    let before = chat.stdout().len();
    writeln!(input, "and then?").expect("it listens");
    until("another answer to begin", LIMIT, || chat.stdout().len() > before + 20);
    chat.signal(Signal::INT);
    until("that to stop", LIMIT, || chat.stderr().matches("(stopped)").count() == 2);
    drop(input);
    let stderr = chat.finish(LIMIT).success().stderr;
    assert!(stderr.contains(" prompt tokens, "), "the second turn begins like the first: {stderr}");
}

#[test]
fn ctrl_c_ends_serve_also_while_it_comes_up() {
    let golden = golden("llama");
    let model = path(&golden.path);
    let worker = TestWorker::new("held");
    // Held by another master, whose end is waited for a while.
    let holder = Master::over([&worker]).start(&["serve", &model, "--listen", "127.0.0.1:0"]);
    until("the first to listen", LIMIT, || holder.stdout().contains("listening"));
    let second = Master::over([&worker]).start(&["serve", &model, "--listen", "127.0.0.1:0"]);
    until("its page to be there", LIMIT, || second.stderr().contains("the page is at http://"));
    second.signal(Signal::INT);
    assert_eq!(second.finish(LIMIT).status.code(), Some(130));
    holder.signal(Signal::INT);
    assert_eq!(holder.finish(LIMIT).status.code(), Some(0));
}

#[test]
fn chat_and_run_announce_a_push_before_it_and_sum_it_up() {
    let told = |stderr: &str| {
        let parts = ["predicted: ", "\npush ", " in about ", "of disk free there)", "\npushed "];
        let places: Vec<_> = parts.iter().map(|part| stderr.find(part)).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} {stderr}");
    };
    let worker = TestWorker::new("tablet");
    told(&chat(&Master::over([&worker]), &["--max-tokens", "1"], &["hello"]));
    let worker = TestWorker::new("tablet");
    let args = ["run", &path(&golden("llama").path), "hello", "--max-tokens", "1"];
    told(&Master::over([&worker]).run(&args).success().stderr);
}

#[test]
fn doctor_tells_two_workers_of_one_name_apart() {
    let workers = TestWorker::several(&["twin", "twin"]);
    let finished = Master::over(&workers).run(&["doctor"]).success();
    for worker in &workers {
        let reached = format!("reaches twin@{}", worker.address);
        assert!(finished.stdout.contains(&reached), "no {reached:?}: {}", finished.stdout);
    }
}

#[test]
fn a_demo_needs_no_home_and_keeps_out_of_the_state() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let demo = || {
        let mut command = Command::new(&programs().master);
        command.args(["demo"]).current_dir(home.path());
        for name in ["CAKE_STATE", "XDG_CACHE_HOME", "XDG_DATA_HOME", "HOME", "CAKE_WORKERS"] {
            command.env_remove(name);
        }
        command
    };
    Running::start(&mut demo()).finish(DEADLINE).success();
    let state = home.path().join("state");
    let finished = Running::start(demo().env("CAKE_STATE", &state)).finish(DEADLINE).success();
    assert!(!state.exists(), "{:?}", files(&state));
    assert!(finished.stdout.contains("predicted: "), "{}", finished.stdout);
}

#[test]
fn a_demo_with_talkative_workers_ends() {
    let master = Master::alone();
    let mut command = master.bare(&["demo"]);
    let finished = Running::start(command.env("CAKE_LOG", "trace")).finish(DEADLINE).success();
    assert!(finished.stdout.contains("laptop held layers"), "{}", finished.stdout);
}
