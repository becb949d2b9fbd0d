//! What plans do about devices that do not compute with matrices as the model's are stored.
use cake_tests::{Golden, Master, Meddler, TestWorker, golden, master};

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
