//! What a run tells of its time: every token's is shared out, and prompts are cut by who computes.
use cake_tests::master::{answer_args, pins, strs};
use cake_tests::{Golden, Master, ModelShape, TestWorker, golden, model};
use serde_json::Value;

/// Tokens of the answers.
const TOKENS: usize = 6;

fn timing(master: &Master, golden: &Golden, place: &[(&str, usize, usize)]) -> Value {
    let args = [answer_args(&golden.path, &golden.prompt_ids, TOKENS), pins(place)].concat();
    master.json(&strs(&args))["timing"].clone()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn every_tokens_time_is_at_least_that_of_its_arithmetic() {
    let golden = golden("llama-sharded");
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let cut = golden.num_layers / 2;
    let over = timing(&master, &golden, &[("a", 0, cut), ("b", cut, golden.num_layers)]);
    assert_eq!(over["hops"], 3, "there, on, and back");
    let alone = timing(&Master::alone(), &golden, &[]);
    assert_eq!(alone["hops"], 0);
    for timing in [over, alone] {
        let steps = timing["decode_steps"].as_array().expect("steps");
        assert_eq!(steps.len(), TOKENS - 1, "one for each token after the first");
        for step in steps {
            let [all, stages, ends] =
                ["seconds", "stage_seconds", "ends_seconds"].map(|name| number(step, name));
            assert!(stages > 0.0 && ends > 0.0 && all >= stages + ends, "{step}");
        }
    }
}

#[test]
fn prompts_are_cut_by_who_computes_and_as_asked() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let shape = ModelShape { max_positions: 1024, ..ModelShape::tiny() };
    model::make(home.path(), &shape, 5).expect("the model can be written");
    let workers = TestWorker::several(&["a", "b"]);
    let prompt: Vec<u32> = (0..700).map(|index| 2 + index % 50).collect();
    let layers = shape.layers;
    let place = [("a", 0, 1), ("b", 1, layers)];
    let run = |master: &Master, more: &[&str]| {
        let args = answer_args(home.path(), &prompt, 2);
        let said = master.json(&[&strs(&args)[..], &["--context", "1024"], more].concat());
        (said["timing"]["prompt_chunk"].as_u64().expect("a number"), said["logprobs"].clone())
    };
    let (alone, expected) = run(&Master::alone(), &[]);
    assert_eq!(alone, 512);
    let place = pins(&place);
    let over = Master::over(&workers);
    let (shared, same) = run(&over, &strs(&place));
    assert!((64..=256).contains(&shared) && shared.is_multiple_of(32), "{shared}");
    assert_eq!(same, expected);
    let (asked, same) = run(&over, &[&strs(&place)[..], &["--chunk", "7"]].concat());
    assert_eq!((asked, same), (7, expected));
}
