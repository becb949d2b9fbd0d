//! Right: a model in GGUF files answers as the reference does, alone and over workers.
use std::path::{Path, PathBuf};

use cake_tests::golden::spread;
use cake_tests::{Master, TestWorker};
use serde_json::Value;

/// What is asked of a golden file: its prompt, what the reference answers, and how many layers there are.
fn golden_gguf(name: &str) -> (PathBuf, Vec<u32>, Vec<u32>, usize) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf").join(name);
    let text = std::fs::read(directory.join("expected.json")).expect("golden data");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let ids = |field: &str| -> Vec<u32> {
        let ids = json[field].as_array().expect("a list of ids").iter();
        ids.map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let layers = json["hf_config"]["num_hidden_layers"].as_u64().expect("a number of layers");
    (directory, ids("prompt_ids"), ids("greedy_ids"), layers as usize)
}

/// The workers that all models are spread over.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Asks the model at `path`, a file or a directory, alone and over `workers`.
#[track_caller]
fn check(path: &Path, name: &str, workers: &[TestWorker]) {
    let (_, prompt, expected, layers) = golden_gguf(name);
    let alone = Master::alone().answer_of(path, &prompt, expected.len(), &[], &[]);
    assert_eq!(alone.output_ids, expected, "{name} alone");
    let begins: Vec<usize> = (0..layers).collect();
    let place = spread(layers, &begins, &NAMES);
    let over = Master::over(workers).answer_of(path, &prompt, expected.len(), &place, &[]);
    assert_eq!(over.output_ids, expected, "{name} over {place:?}");
    assert_eq!(over.logprob_bits, alone.logprob_bits, "{name}: a split changes no bit");
    assert_eq!(over.stages.len(), layers.min(NAMES.len()), "{name}");
    assert!(over.pushed_bytes + over.reused_bytes > 0, "{name}");
}

#[test]
fn every_file_answers_as_the_reference_does_alone_and_over_three_workers() {
    let workers = TestWorker::several(&NAMES);
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden-gguf");
    let mut names: Vec<String> = std::fs::read_dir(all)
        .expect("golden data")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("expected.json").is_file())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 22, "{names:?}");
    for name in &names {
        check(&golden_gguf(name).0, name, &workers);
    }
}

#[test]
fn a_model_in_several_files_is_named_by_its_first_too() {
    let (directory, ..) = golden_gguf("qwen3-split-q8_0");
    let first = directory.join("model-00001-of-00003.gguf");
    check(&first, "qwen3-split-q8_0", &TestWorker::several(&NAMES));
}

#[test]
fn what_is_made_of_a_file_for_others_answers_as_the_file_does() {
    for (name, to) in [
        ("llama3-q4_k_m", "safetensors"),
        ("gemma3-q5_1", "safetensors"),
        ("qwen3moe-q4_k_m", "apr"),
    ] {
        let (from, prompt, expected, _) = golden_gguf(name);
        let master = Master::alone();
        let out = master.state().join(if to == "apr" { "model.apr" } else { "model" });
        let [from, out] = [&from, &out].map(|path| path.to_str().expect("UTF-8").to_owned());
        let args = ["convert", &from, "--to", to, "--encode", "f32", "--out", &out];
        master.run(&args).success();
        let answer = master.answer_of(Path::new(&out), &prompt, expected.len(), &[], &[]);
        assert_eq!(answer.output_ids, expected, "{name} as {to}");
    }
}

#[test]
fn commands_say_how_matrices_are_stored_and_refuse_what_they_would_get_wrong() {
    let master = Master::alone();
    let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    let said = master.json(&["inspect", &path(golden_gguf("llama3-q4_k_m").0), "--json"]);
    assert!(said["encodings"]["ggml-q4_k"].as_u64() > Some(0), "{said}");
    // Its rows lie in pairs: under the Hub's names they would be others.
    let (out, plain) = (tempfile::tempdir().unwrap(), path(golden_gguf("llama-f16").0));
    let file = path(out.path().join("layers.safetensors"));
    let refusal = master.run(&["extract", &plain, "--layers", "0..1", "--out", &file]).refusal();
    assert!(refusal.contains("GGUF"), "{refusal}");
    assert!(!Path::new(&file).exists());
    // Its codes are packed across rows: bytes that follow each other are no numbers of one.
    let across = path(cake_tests::golden("llama-gptq4").path);
    let refusal = master.run(&["inspect", &across, "--stats"]).refusal();
    assert!(refusal.contains("int-4-64") && refusal.contains("statistics"), "{refusal}");
}
