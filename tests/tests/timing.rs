//! What a run tells of how it went: prompts are cut by who computes.
use cake_tests::master::{answer_args, pins, strs};
use cake_tests::{Master, ModelShape, TestWorker, model};

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
