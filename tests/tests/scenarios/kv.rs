//! Keys and values in 8 bits: what they answer, what fits by them, and who keeps them.
use std::time::Duration;

use cake_tests::golden::read_logits;
use cake_tests::master::{self, path};
use cake_tests::streams::{count, together};
use cake_tests::{
    Master, Meddler, ModelShape, Server, TestWorker, WorkerOptions, budget_for, golden, model,
    until,
};

use crate::errors::assert_says;
use crate::golden::rounded::Rounded;

const Q8: &[&str] = &["--kv", "q8"];
/// Largest difference of a prompt logit from the reference's, by keys and values in 8 bits: as in the engine's own tests.
const LOGITS_TOLERANCE: f32 = 7e-1;
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn answers_are_near_the_references_and_no_split_or_chunk_changes_a_bit() {
    let names = ["a", "b"];
    let workers = TestWorker::several(&names);
    let over = Master::over(&workers);
    // Keys and values, those of a window, latents, and a state beside them.
    for name in ["llama", "gemma3", "deepseek-v3", "falcon-h1"] {
        let golden = golden(name);
        let home = tempfile::tempdir().expect("a temporary folder");
        let file = path(&home.path().join("logits.safetensors"));
        let alone = Master::alone().answer(&golden, &[], &[Q8, &["--logits-out", &file]].concat());
        let rows = golden.prompt_ids.len();
        let rounded = Rounded { name, tolerance: LOGITS_TOLERANCE, closest: golden.closest };
        rounded.compare(&read_logits(file.as_ref()), &golden.logits, rows);
        rounded.differ_at(&alone.output_ids, &golden.greedy_ids);
        let exact = Master::alone().answer(&golden, &[], &[]);
        assert_ne!(alone.logprob_bits, exact.logprob_bits, "{name}: nothing was rounded");
        for chunk in ["1", "7", "64"] {
            let args = [Q8, &["--chunk", chunk]].concat();
            let split = over.answer(&golden, &golden.spread(&names), &args);
            assert_eq!(split.output_ids, alone.output_ids, "{name} in chunks of {chunk}");
            assert_eq!(split.logprob_bits, alone.logprob_bits, "{name} in chunks of {chunk}");
        }
    }
}

/// Wide keys and values beside small layers.
fn shape() -> ModelShape {
    ModelShape { kv_heads: 8, layers: 2, max_positions: 4096, ..ModelShape::small() }
}

#[test]
fn a_context_that_does_not_fit_in_f16_fits_in_8_bits_and_takes_what_is_planned() {
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &shape(), 7).expect("the model can be written");
    let context = ["--context", "4096", "--parallel", "8", "--chunk", "64"];
    let in_8_bits = [&context[..], Q8].concat();
    // With room for half a layer more, which is less than f16 takes more.
    let memory = budget_for(home.path(), 1, &in_8_bits);
    let workers = ["a", "b"]
        .map(|name| TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() }));
    let master = Master::over(&workers);
    let model = path(home.path());
    let plan = |more: &[&str]| {
        let args =
            [&["plan", &model, "--json", "--local-memory", "0"], &context[..], more].concat();
        master.json(&args)
    };
    let wide = [&["plan", &model, "--local-memory", "0"], &context[..]].concat();
    assert_says(&master.run(&wide).refusal(), &["does not fit", ", or --kv q8"]);

    let said = plan(Q8);
    let stages = said["plan"]["stages"].as_array().expect("stages");
    let kv: u64 = stages.iter().map(|it| it["memory"]["kv"].as_u64().expect("bytes")).sum();
    assert_eq!(said["kv"]["bytes"], kv);
    assert_eq!(said["kv"]["dtype"], "q8");
    let (bytes, in_f16) = (kv as f64, said["kv"]["bytes_in_f16"].as_f64().expect("bytes"));
    assert_eq!(bytes / in_f16, 34.0 / 64.0, "32 codes and a scale");
    assert!(said["kv"]["typical_error"].as_f64().expect("measured") < 0.01);
    let told = master.run(&[&wide[..], Q8].concat()).success().stdout;
    assert_says(&told, &["keys and values are kept in 8 bits", "of the 32 that share a scale"]);

    let prompt: Vec<u32> = (0..3000).map(|index| index * 7 % 384).collect();
    let place = [("a", 0, 1), ("b", 1, 2)];
    let run = [&in_8_bits[..], &["--local-memory", "0"]].concat();
    let split = master.answer_of(home.path(), &prompt, 8, &place, &run);
    let alone = Master::alone().answer_of(home.path(), &prompt, 8, &[], &in_8_bits);
    assert_eq!(split.logprob_bits, alone.logprob_bits);
    for worker in &workers {
        let peak = worker.vm_hwm();
        println!("{}: peak {peak} of {memory} offered", worker.name);
        assert!(peak <= memory, "{}", worker.name);
    }
}

#[test]
fn answers_go_on_with_the_same_tokens_when_a_worker_dies() {
    const TOKENS: usize = 60;
    let home = tempfile::tempdir().expect("a temporary folder");
    model::make(home.path(), &ModelShape::quick(), 5).expect("the model can be written");
    let args = ["--context", "512", "--chunk", "16", "--local-memory", "0", "--kv", "q8"];
    let memory = budget_for(home.path(), 4, &[&["--parallel", "8"], &args[..]].concat());
    let start = || {
        ["a", "b", "c"].map(|name| {
            TestWorker::start(name, WorkerOptions { memory, ..WorkerOptions::default() })
        })
    };
    let pins = master::pins(&[("a", 0, 3), ("b", 3, 6), ("c", 6, 8)]);
    let all = [&master::strs(&pins)[..], &args].concat();
    let answers = |workers: &mut [TestWorker], lose: bool| {
        let master = Master::over(&*workers);
        let server = Server::start(&master, home.path(), &all);
        together(&server, TOKENS, || {
            if lose {
                let made = || count(&server, "cake_generated_tokens_total");
                until("the moment", LIMIT, || made() > 100.0);
                workers[1].kill();
            }
        })
    };
    let whole = answers(&mut start(), false);
    assert!(answers(&mut start(), true) == whole);
}

#[test]
fn a_worker_that_does_not_know_8_bits_gets_no_layers_and_is_named() {
    let kitchen = TestWorker::new("kitchen");
    let meddler = Meddler::before(&kitchen.address);
    meddler.deny("q8");
    let attic = TestWorker::new("attic");
    let model = path(&golden("llama").path);
    let both = Master::at([&meddler.address, &attic.address]);
    let told = both.run(&["plan", &model, "--kv", "q8"]).success().stdout;
    assert_says(&told, &["kitchen has no layers: it does not run q8 keys and values"]);
    let placed = ["plan", &model, "--kv", "q8", "--place", "kitchen=0..1"];
    let refused = both.run(&placed).refusal();
    assert_eq!(refused, "layers 0..1 are placed on kitchen, which does not run q8 keys and values");
    let alone = Master::at([&meddler.address]);
    let refused = alone.run(&["plan", &model, "--kv", "q8", "--local-memory", "0"]).refusal();
    let said = "no device that may have layers runs q8 keys and values: kitchen does not";
    assert_says(&refused, &[said]);
    both.run(&["plan", &model, "--kv", "f16", "--place", "kitchen=0..1"]).success();
}
