//! Fits: a worker's memory stays within what the plan gave it, counted by the system.
use std::path::Path;

use cake_tests::master::{Answer, path};
use cake_tests::{Cgroup, Master, ModelShape, TestWorker, WorkerOptions, model, not_shown};

/// A worker's peak, counted by the system, for each byte that was planned.
const PEAK_BAR: f64 = 1.10;
const SEED: u64 = 7;
const CONTEXT: &[&str] = &["--context", "256", "--numerics", "exact"];

/// 8 layers of 30 MiB.
fn shape() -> ModelShape {
    ModelShape {
        hidden_size: 1024,
        intermediate_size: 4096,
        heads: 16,
        kv_heads: 8,
        ..ModelShape::small()
    }
}

/// Bytes that a plan gives each worker, in chain order.
fn planned(master: &Master, model: &Path, place: &[(&str, usize, usize)]) -> Vec<u64> {
    let pins = cake_tests::master::pins(place);
    let pins = cake_tests::master::strs(&pins);
    let model = path(model);
    let args = [&["plan", &model, "--json"], CONTEXT, &pins[..]].concat();
    let report = master.json(&args);
    let stages = report["plan"]["stages"].as_array().expect("stages");
    let total = |stage: &serde_json::Value| -> u64 {
        let part = |name: &str| stage["memory"][name].as_u64().expect("bytes");
        ["weights", "kv", "state", "scratch", "overhead"].into_iter().map(part).sum()
    };
    stages.iter().map(total).collect()
}

fn answer(master: &Master, model: &Path, place: &[(&str, usize, usize)]) -> Answer {
    let prompt: Vec<u32> = (2..202).collect(); // Chunks of 64, and most of the context.
    master.answer_of(model, &prompt, 20, place, CONTEXT)
}

#[test]
fn the_peak_of_every_worker_is_what_was_planned() {
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), SEED).expect("the model can be written");
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let place = [("a", 0, 6), ("b", 6, 8)];
    let planned = planned(&master, home.path(), &place);
    let first = answer(&master, home.path(), &place);
    assert!(first.pushed_bytes > 0, "the peak includes receiving");
    answer(&master, home.path(), &place);
    for (worker, planned) in workers.iter().zip(planned) {
        let ratio = worker.vm_hwm() as f64 / planned as f64;
        println!("{}: peak {} of {planned} planned, {ratio:.3}", worker.name, worker.vm_hwm());
        assert!(ratio <= PEAK_BAR, "{}: {ratio}", worker.name);
    }
}

#[test]
fn workers_run_inside_memory_groups_as_large_as_their_offers() {
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), SEED).expect("the model can be written");
    let place = [("a", 0, 5), ("b", 5, 8)];
    // What they need, asked of workers that have more than enough.
    let ample = TestWorker::several(&["a", "b"]);
    let planned = planned(&Master::over(&ample), home.path(), &place);
    drop(ample);
    let groups: Result<Vec<Cgroup>, String> =
        planned.iter().map(|bytes| Cgroup::memory(*bytes)).collect();
    let groups = match groups {
        Ok(groups) => groups,
        Err(why) => return not_shown(why),
    };
    let start = |(index, name): (usize, &&str)| {
        let (memory, cgroups) = (planned[index], vec![&groups[index]]);
        TestWorker::start(name, WorkerOptions { memory, cgroups, ..WorkerOptions::default() })
    };
    let workers: Vec<TestWorker> = ["a", "b"].iter().enumerate().map(start).collect();
    let split = answer(&Master::over(&workers), home.path(), &place);
    let alone = answer(&Master::alone(), home.path(), &[]);
    assert_eq!(split.logprob_bits, alone.logprob_bits);
    for ((worker, group), offer) in workers.iter().zip(&groups).zip(&planned) {
        println!(
            "{}: peak {} of {offer} offered and allowed, limit met {:?} times",
            worker.name,
            worker.vm_hwm(),
            group.limit_hits()
        );
        assert!(worker.alive());
        assert_eq!(group.oom_kills().unwrap_or(0), 0, "{}", worker.name);
    }
}
