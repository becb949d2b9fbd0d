//! Slow devices: a worker held to a part of a CPU gets fewer layers.
use std::path::Path;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::{Cgroup, Master, ModelShape, TestWorker, WorkerOptions, model, not_shown, until};

const SEED: u64 = 7;
/// Longest that one undisturbed measurement is waited for.
const LIMIT: Duration = Duration::from_secs(300);
/// Part of a CPU that the slow worker may use.
const SHARE: f64 = 0.25;

/// Layers that the plan gives each worker.
fn layers(model: &Path, workers: &[TestWorker; 2]) -> [usize; 2] {
    // Two sequences at once: then the slowest stage counts, and equal workers share equally.
    let args = ["plan", &path(model), "--parallel", "2", "--context", "128", "--json"];
    let report = Master::over(workers).json(&args);
    let stages = report["plan"]["stages"].as_array().expect("stages");
    let count = |worker: &TestWorker| {
        let own = stages.iter().find(|stage| stage["device"] == worker.name.as_str());
        own.map_or(0, |stage| {
            let range = stage["layers"].as_str().expect("a range");
            let (start, end) = range.split_once("..").expect("a half-open range");
            end.parse::<usize>().expect("a number") - start.parse::<usize>().expect("a number")
        })
    };
    [count(&workers[0]), count(&workers[1])]
}

#[test]
fn a_worker_held_to_a_quarter_of_a_cpu_gets_fewer_layers() {
    let _machine = crate::alone();
    let group = match Cgroup::cpu(SHARE) {
        Ok(group) => group,
        Err(why) => return not_shown(why),
    };
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape { layers: 12, ..ModelShape::small() };
    model::make(home.path(), &shape, SEED).expect("the model can be written");
    let workers = [TestWorker::new("a"), TestWorker::new("b")];
    shared(home.path(), &workers, |layers| layers.iter().all(|layers| *layers >= 5));
    drop(workers);
    let cgroups = vec![&group];
    let slow = TestWorker::start("b", WorkerOptions { cgroups, ..WorkerOptions::default() });
    // Four times slower: a fifth of the layers, a third if the measurement is somewhat off.
    shared(home.path(), &[TestWorker::new("a"), slow], |[fast, slow]| {
        fast + slow == shape.layers && slow * 3 <= shape.layers
    });
}

/// Plans until the layers are shared as they should be: what else runs here disturbs measurements.
#[track_caller]
fn shared(model: &Path, workers: &[TestWorker; 2], right: impl Fn([usize; 2]) -> bool) {
    until("the layers to be shared by speed", LIMIT, || {
        let found = layers(model, workers);
        println!("layers, measured anew: {found:?}");
        right(found)
    });
}
