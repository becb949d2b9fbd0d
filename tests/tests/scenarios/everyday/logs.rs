//! What the programs log.
use std::time::Duration;

use cake_tests::streams::COMPLETIONS;
use cake_tests::{Master, Running, TestWorker, WorkerOptions, golden, master, until};
use rustix::process::Signal;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);
const PLACE: [(&str, usize, usize); 2] = [("a", 0, 6), ("b", 6, 12)];

/// The lines that would make somebody look.
fn alarming(log: &str) -> Vec<&str> {
    let alarms = ["WARN", "ERROR", "panicked", "\u{1b}"];
    log.lines().filter(|line| alarms.iter().any(|alarm| line.contains(alarm))).collect()
}

#[test]
fn a_worker_says_who_holds_it_what_it_loaded_and_how_much_it_computed() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let more = WorkerOptions { args: vec!["-v".to_owned()], ..WorkerOptions::default() };
    let talkative = TestWorker::start("c", more);
    Master::over(&workers).answer(&golden, &PLACE, &[]);
    Master::over([&talkative]).answer(&golden, &[("c", 0, 12)], &[]);
    for worker in workers.iter().chain([&talkative]) {
        until("it to be let go", LIMIT, || worker.log().contains("released"));
    }
    for (worker, layers) in workers.iter().zip(["0..6", "6..12"]) {
        let log = worker.log();
        let notes: Vec<&str> = log.lines().filter(|line| line.contains(" INFO ")).collect();
        let [held, loaded, released] = notes[..] else { panic!("three lines, not: {log}") };
        assert!(held.contains("held master="), "{log}");
        assert!(loaded.contains(&format!("layers={layers} weights=")), "{log}");
        let tokens = released.split("computed_tokens=").nth(1).expect("a number");
        let tokens: usize =
            tokens.split(' ').next().and_then(|it| it.parse().ok()).expect("a number");
        // The last one that was chosen is not computed with any more.
        assert_eq!(tokens, golden.prompt_ids.len() + golden.greedy_ids.len() - 1, "{log}");
        assert_eq!(alarming(&log), [""; 0], "{log}");
    }
    let count = |log: String| log.lines().filter(|line| line.contains(" INFO ")).count();
    assert!(count(talkative.log()) > 3, "-v says more: {}", talkative.log());
    assert_eq!(alarming(&talkative.log()), [""; 0]);
}

#[test]
fn who_stops_in_the_ordinary_way_alarms_nobody() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let serve = |more: &[&str]| {
        let model = master::path(&golden.path);
        let args = ["serve", &model, "--listen", "127.0.0.1:0", "--local-memory", "0"];
        let mut server: Running = master.start(&[&args[..], more].concat());
        server.wait_for("listening on ", LIMIT);
        let line = server.stdout();
        let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        (server, url)
    };
    let ask = |url: &str| {
        let request = json!({"prompt": golden.prompt_ids, "max_tokens": 4, "ignore_eos": true});
        let answer = ureq::post(format!("{url}{COMPLETIONS}")).send(request.to_string().as_bytes());
        assert_eq!(answer.expect("an answer").status().as_u16(), 200);
    };
    for signal in [Signal::INT, Signal::TERM] {
        let pins = master::pins(&PLACE);
        let (server, url) = serve(&master::strs(&pins));
        ask(&url);
        server.signal(signal);
        let ended = server.finish(LIMIT).success();
        assert_eq!(alarming(&ended.stderr), [""; 0], "{}", ended.stderr);
    }
    // A worker that stops while it is held, where the other has room for its layers.
    let (server, url) = serve(&[]);
    ask(&url);
    let stop = |worker: &TestWorker, signal| {
        worker.signal(signal);
        until("the worker to end", LIMIT, || !worker.alive());
    };
    stop(&workers[1], Signal::INT);
    ask(&url);
    server.signal(Signal::INT);
    let ended = server.finish(LIMIT).success();
    assert_eq!(alarming(&ended.stderr), [""; 0], "{}", ended.stderr);
    stop(&workers[0], Signal::TERM);
    for worker in &workers {
        assert_eq!(alarming(&worker.log()), [""; 0], "{}: {}", worker.name, worker.log());
    }
}

#[test]
fn colours_are_for_terminals() {
    let with = |env: &[(&str, &str)]| {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let args = vec!["-vv".to_owned()];
        let options = WorkerOptions { env: env.collect(), args, ..WorkerOptions::default() };
        let worker = TestWorker::start("a", options);
        assert!(worker.log().contains("store opened"), "{}", worker.log());
        worker.log().contains('\u{1b}')
    };
    assert!(!with(&[]) && with(&[("CLICOLOR_FORCE", "1")]));
}
