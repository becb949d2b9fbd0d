//! Devices of which none has room for a whole layer share it.
use std::path::Path;
use std::time::Duration;

use cake_tests::master::path;
use cake_tests::model::Experts;
use cake_tests::streams::{count, together};
use cake_tests::{Master, ModelShape, Server, TestWorker, WorkerOptions, model, until};

/// A worker's peak, counted by the system, for each byte that it offers.
const PEAK_BAR: f64 = 1.10;
const SEED: u64 = 11;
const LIMIT: Duration = Duration::from_secs(60);
const ARGS: &[&str] = &["--context", "256", "--numerics", "exact", "--parallel", "8"];

/// Two layers of 64 experts of 3 MiB each.
fn shape() -> ModelShape {
    ModelShape {
        hidden_size: 1024,
        heads: 16,
        kv_heads: 8,
        layers: 2,
        experts: Some(Experts { count: 64, chosen: 4, inner_size: 512 }),
        ..ModelShape::small()
    }
}

/// What a worker offers that has room for three quarters of a layer (bytes), by the plan of one with room for all.
fn offer(model: &Path) -> u64 {
    let ample = TestWorker::several(&["a"]);
    let model = path(model);
    let args = [&["plan", &model, "--json", "--local-memory", "0"], ARGS].concat();
    let memory = Master::over(&ample).json(&args)["plan"]["stages"][0]["memory"].clone();
    let part = |name: &str| memory[name].as_u64().expect("bytes");
    let layer = (part("weights") + part("kv")) / 2;
    part("scratch") + part("overhead") + layer * 3 / 4
}

fn small(name: &str, memory: u64) -> TestWorker {
    TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() })
}

#[test]
fn workers_too_small_for_a_layer_share_it() {
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), SEED).expect("the model can be written");
    let prompt: Vec<u32> = (2..202).collect(); // Chunks of 64, and most of the context.
    let answer = |master: &Master| master.answer_of(home.path(), &prompt, 20, &[], ARGS);
    let alone = answer(&Master::alone());
    let offer = offer(home.path());
    let workers: Vec<TestWorker> =
        ["a", "b", "c", "d"].iter().map(|name| small(name, offer)).collect();
    let master = Master::over(&workers);
    let model = path(home.path());
    let plan = master.json(&[&["plan", &model, "--json"], ARGS].concat());
    assert_eq!(plan["parts_of"], 2, "{plan}");
    let shared = answer(&master);
    assert!(shared.stages.len() >= 3, "{} workers", shared.stages.len());
    assert_eq!(shared.output_ids, alone.output_ids);
    assert_eq!(shared.logprob_bits, alone.logprob_bits);
    for worker in &workers {
        let peak = worker.vm_hwm();
        assert!(peak as f64 <= PEAK_BAR * offer as f64, "{}: {peak} of {offer}", worker.name);
    }
}

#[test]
fn those_that_are_left_share_layers_once_the_only_large_one_is_gone() {
    const TOKENS: usize = 40;
    println!("seed {SEED}");
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), SEED).expect("the model can be written");
    let offer = offer(home.path());
    let mut large = TestWorker::several(&["large"]).remove(0);
    let others: Vec<TestWorker> = ["a", "b", "c"].iter().map(|name| small(name, offer)).collect();
    let addresses = [&large].into_iter().chain(&others).map(|worker| worker.address.clone());
    let master = Master::at(addresses);
    let args = [ARGS, &["--local-memory", "0", "--chunk", "16", "--grace", "600"]].concat();
    let server = Server::start(&master, home.path(), &args);
    let whole = together(&server, TOKENS, || {});
    let before = count(&server, "cake_generated_tokens_total");
    let answers = together(&server, TOKENS, || {
        let some = || count(&server, "cake_generated_tokens_total") > before + 60.0;
        until("some tokens", LIMIT, some);
        large.kill();
    });
    assert!(answers == whole, "answers that went on in parts of layers");
    let shown = server.get("/api/cluster").good();
    assert_eq!(shown["parts_of"], 2, "{shown}");
    let devices = shown["devices"].clone();
    let holders = devices.as_array().expect("devices").iter();
    let holders: Vec<_> = holders.filter(|device| device["layers"].is_string()).collect();
    assert_eq!(holders.len(), 3, "{devices}");
}
