//! What plans do about devices that do not compute with matrices as the model's are stored, or have room for narrower ones.
use cake_tests::{
    Golden, Master, Meddler, ModelShape, TestWorker, WorkerOptions, golden, master, model,
};

/// How matrices of the golden model are stored.
const ENCODING: &str = "affine-4-64";

/// Two workers, the first of which does not run the model, and the master that knows them as such.
struct Home {
    golden: Golden,
    kitchen: (TestWorker, Meddler),
    attic: TestWorker,
}

impl Home {
    fn new() -> Self {
        let kitchen = TestWorker::new("kitchen");
        let meddler = Meddler::before(&kitchen.address);
        meddler.deny(ENCODING);
        let attic = TestWorker::new("attic");
        Self { golden: golden("qwen2-mlx4"), kitchen: (kitchen, meddler), attic }
    }

    fn both(&self) -> Master {
        Master::at([&self.kitchen.1.address, &self.attic.address])
    }
}

#[test]
fn a_worker_that_does_not_run_an_encoding_gets_no_layers_and_is_named() {
    let home = Home::new();
    let model = master::path(&home.golden.path);
    let said = home.both().json(&["plan", &model, "--json"]);
    let idle = serde_json::json!([
        { "device": "kitchen", "why": { "does_not_run": { "encodings": [ENCODING] } } }
    ]);
    assert_eq!(said["idle"], idle);
    let stages = said["plan"]["stages"].as_array().expect("a list");
    assert!(stages.iter().all(|stage| stage["device"] == "attic"), "{said}");
    let told = home.both().run(&["plan", &model]).success().stdout;
    assert!(told.contains("kitchen has no layers: it does not run affine-4-64"), "{told}");
    let placed = home.both().run(&["plan", &model, "--place", "kitchen=0..1"]).refusal();
    assert_eq!(placed, "layers 0..1 are placed on kitchen, which does not run affine-4-64");
    // Another model is no question.
    let other = master::path(&golden("llama").path);
    assert_eq!(
        home.both().json(&["plan", &other, "--json", "--place", "kitchen=0..5"])["idle"][0]["device"],
        "attic"
    );
}

#[test]
fn where_no_worker_runs_an_encoding_the_master_does_unless_it_may_not() {
    let home = Home::new();
    let kitchen = Master::at([&home.kitchen.1.address]);
    let answer = kitchen.answer(&home.golden, &[], &[]);
    assert_eq!(answer.output_ids, home.golden.greedy_ids);
    let model = master::path(&home.golden.path);
    let said = kitchen.json(&["plan", &model, "--json"]);
    assert_eq!(said["plan"]["stages"][0]["device"], "master");
    assert_eq!(said["idle"][0]["device"], "kitchen");
    let refused = kitchen.run(&["plan", &model, "--local-memory", "0"]).refusal();
    assert_eq!(refused, "no device that may have layers runs affine-4-64: kitchen does not");
}

/// What else a plan makes room for; with less to a step, wider layers would fit.
const PROMISE: &[&str] = &["--context", "128", "--chunk", "64"];

#[test]
fn memory_that_is_left_goes_to_the_layers_that_lose_most() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape::small();
    model::make(home.path(), &shape, 5).expect("the model can be written");
    let path = master::path(home.path());
    let plan = |worker: &TestWorker, encode: &str| {
        let args = ["plan", &path, "--json", "--encode", encode];
        Master::over([worker]).json(&[&args[..], PROMISE].concat())
    };
    let roomy = TestWorker::new("a");
    let memory = |encode: &str, part: &str| {
        let said = plan(&roomy, encode);
        said["plan"]["stages"][0]["memory"][part].as_u64().expect("bytes")
    };
    let weights = |encode: &str| memory(encode, "weights");
    let parts = ["weights", "kv", "state", "scratch", "overhead"];
    let narrow: u64 = parts.iter().map(|part| memory("q4", part)).sum();
    // Half of the layers may have a bit more.
    let memory = narrow + (weights("q5") - weights("q4")) / 2 + (64 << 10);
    let tight = TestWorker::start("a", WorkerOptions { memory, ..WorkerOptions::default() });
    let said = plan(&tight, "auto");
    let half = shape.layers / 2;
    assert_eq!(said["encoding"], format!("q5 in {half} layers, q4 in {half} layers"));
    let losses = said["losses"].as_array().expect("a list");
    let wider = losses.iter().filter(|layer| layer["encoding"] == "q5").count();
    assert_eq!((losses.len(), wider), (shape.layers, half));
    let args = ["plan", &path, "--encode", "auto", "--why"];
    let told = Master::over([&tight]).run(&[&args[..], PROMISE].concat()).success().stdout;
    assert!(told.contains("weights are encoded as q5 in") && told.contains("gets\n"), "{told}");
    let auto = [&["--encode", "auto"], PROMISE].concat();
    let answer = Master::over([&tight]).answer_of(home.path(), &[2, 3, 4], 4, &[], &auto);
    assert_eq!(answer.output_ids.len(), 4);
}
