//! What a plan predicts: devices that were timed at a bad moment are not taken to be slow for ever.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cake_tests::master::path;
use cake_tests::{Master, ModelShape, TestWorker, model, not_shown};
use serde_json::Value;
use tempfile::TempDir;

/// Longest that processors are kept busy.
const LIMIT: Duration = Duration::from_secs(60);
/// How many times as slow as it is a device was found to be.
const WRONG: f64 = 20.0;
/// What is predicted afterwards is less by this, at least: machines are not the same all the time.
const RIGHT: f64 = 3.0;

fn small() -> TempDir {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::small(), 7).expect("the model can be written");
    home
}

/// Seconds that a plan predicts of the only stage.
fn stage_seconds(master: &Master, model: &Path) -> f64 {
    let plan = master.json(&["plan", &path(model), "--context", "128", "--json"]);
    plan["plan"]["stages"][0]["stage_seconds"]
        .as_f64()
        .unwrap_or_else(|| panic!("no stage: {plan}"))
}

/// What the master remembers of devices.
fn remembered(master: &Master) -> serde_json::Map<String, Value> {
    let file = std::fs::read(master.state().join("measured.json")).expect("something was measured");
    serde_json::from_slice(&file).expect("JSON")
}

/// What was measured of the only worker.
fn remembered_of_worker(master: &Master) -> Value {
    let all = remembered(master);
    let (_, known) = all.iter().find(|(key, _)| is_worker(key)).expect("it was measured");
    known["measured"].clone()
}

/// The head that the master computes is remembered beside the workers' layers.
fn is_worker(key: &str) -> bool {
    !key.starts_with("ends/")
}

/// Has the master remember the worker as if it had been timed under load, and the load seen or not.
fn spoil(master: &Master, noticed: bool) {
    let mut all = remembered(master);
    for (_, known) in all.iter_mut().filter(|(key, _)| is_worker(key)) {
        let measured = &mut known["measured"];
        let seconds = measured["decode_seconds"].as_f64().expect("seconds");
        measured["decode_seconds"] = (WRONG * seconds).into();
        measured["quiet"] = (!noticed).into();
    }
    let file = serde_json::to_vec(&all).expect("JSON");
    std::fs::write(master.state().join("measured.json"), file).expect("written");
}

#[test]
fn a_device_that_was_timed_under_load_is_known_better_once_it_has_answered() {
    let _machine = crate::alone();
    let home = small();
    let worker = TestWorker::new("a");
    for noticed in [true, false] {
        let master = Master::over([&worker]);
        stage_seconds(&master, home.path());
        spoil(&master, noticed);
        let spoilt = remembered_of_worker(&master)["decode_seconds"].as_f64().expect("seconds");
        master.answer_of(home.path(), &[2, 3, 4], 40, &[], &["--context", "128"]);
        let layers = ModelShape::small().layers as f64;
        let predicted = stage_seconds(&master, home.path());
        println!("noticed {noticed}: {} ms, then {} ms", 1e3 * spoilt * layers, 1e3 * predicted);
        assert!(predicted <= spoilt * layers / RIGHT, "{predicted}, it was {}", spoilt * layers);
    }
}

#[test]
fn a_device_that_is_timed_under_load_is_timed_again() {
    if !cfg!(target_os = "linux") {
        return not_shown("the system does not tell what its processors do".to_owned());
    }
    let _machine = crate::alone();
    let home = small();
    let worker = TestWorker::new("a");
    let master = Master::over([&worker]);
    let (args, enough) = (["plan", &path(home.path()), "--context", "128"], AtomicBool::new(false));
    let began = Instant::now();
    let said = std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..2 * processors {
            scope.spawn(|| {
                // Also where the command fails.
                while !enough.load(Ordering::Relaxed) && began.elapsed() < LIMIT {
                    std::hint::spin_loop();
                }
            });
        }
        let finished = master.run(&args);
        enough.store(true, Ordering::Relaxed);
        finished
    });
    let said = said.success();
    assert!(said.stderr.contains("a was timed while other work went on there"), "{}", said.stderr);
    assert_eq!(remembered_of_worker(&master)["quiet"], false);
    // The next plan does not believe what was timed then.
    spoil(&master, true);
    let spoilt = remembered_of_worker(&master)["decode_seconds"].clone();
    master.run(&args).success();
    let again = remembered_of_worker(&master)["decode_seconds"].clone();
    println!("{spoilt} s for a token's layers, then {again} s");
    assert_ne!(again, spoilt);
}
