//! Right: a model in an APR file answers as the reference does, alone and over workers.
use std::path::{Path, PathBuf};

use cake_tests::{Master, TestWorker};
use serde_json::Value;

/// What is asked of each golden file: its prompt, and what the reference answers.
fn golden_apr(name: &str) -> (PathBuf, Vec<u32>, Vec<u32>) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-apr");
    let text = std::fs::read(directory.join(format!("{name}.json"))).expect("golden data");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let ids = |field: &str| -> Vec<u32> {
        let ids = json[field].as_array().expect("a list of ids").iter();
        ids.map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    (directory.join(format!("{name}.apr")), ids("prompt_ids"), ids("greedy_ids"))
}

#[test]
fn every_golden_file_answers_as_the_reference_does_alone_and_over_workers() {
    let workers = TestWorker::several(&["a", "b"]);
    let two = Master::over(&workers);
    // Where the second worker starts: none of these models has fewer layers than three.
    const CUT: usize = 2;
    for (name, layers) in
        [("llama-f32", 5), ("llama-f16-bf16", 5), ("llama-q8-q4", 5), ("llama3-q4k", 3)]
    {
        let (path, prompt, expected) = golden_apr(name);
        let alone = Master::alone().answer_of(&path, &prompt, expected.len(), &[], &[]);
        assert_eq!(alone.output_ids, expected, "{name} alone");
        let place = [("a", 0, CUT), ("b", CUT, layers)];
        let spread = two.answer_of(&path, &prompt, expected.len(), &place, &[]);
        assert_eq!(spread.output_ids, expected, "{name} over workers");
        assert_eq!(spread.logprob_bits, alone.logprob_bits, "{name}: a split changes no bit");
        let (first, last) = (format!("0..{CUT}"), format!("{CUT}..{layers}"));
        let stages = [("a".to_owned(), first, true), ("b".to_owned(), last, true)];
        assert_eq!(spread.stages, stages, "{name}: who computed what");
        assert!(spread.pushed_bytes > 0, "{name}");
        // By default, too: what is stored in codes is computed with in f32.
        let fast = ["--numerics", "fast"];
        let fast = Master::alone().answer_of(&path, &prompt, expected.len(), &[], &fast);
        assert_eq!(fast.output_ids, expected, "{name} by default");
    }
}
