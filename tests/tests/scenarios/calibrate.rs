//! Weights that are turned into fewer bits are off where a text needs them least.
use std::path::Path;

use cake_tests::master::path;
use cake_tests::{Master, TestWorker, demo_model};
use serde_json::Value;

use crate::models::copy;

/// What a run of a text is told by.
const RUNS: &str = "through the model to see where errors count";

/// Bytes that a push sent.
fn sent(report: &Value) -> u64 {
    let workers = report["pushed"].as_array().expect("one for each worker");
    workers.iter().map(|worker| worker["pushed_bytes"].as_u64().expect("bytes")).sum()
}

#[test]
fn a_text_changes_what_is_pushed_and_is_run_once() {
    let workers = TestWorker::several(&["a", "b"]);
    let master = Master::over(&workers);
    let (model, text) = (path(&demo_model()), path(&demo_model().join("heldout.txt")));
    // What is sent again must not hang on how fast each was when it was asked.
    let push = |more: &[&str]| {
        let fixed = ["push", &model, "--encode", "q4", "--json", "--place", "a=0..6"];
        let finished = master.run(&[&fixed[..], &["--place", "b=6..12"], more].concat());
        let runs = finished.stderr.contains(RUNS);
        (sent(&finished.json()), runs)
    };
    let calibrate = ["--calibrate", &*text];
    let (plain, runs) = push(&[]);
    assert!(plain > 0 && !runs);
    let (calibrated, runs) = push(&calibrate);
    // As many bytes, but for what manifests say; each worker has them once.
    assert!(runs && calibrated.abs_diff(plain) * 20 < plain, "{calibrated} and {plain}");
    assert_eq!(push(&calibrate), (0, false), "the workers have it, and the master remembers");

    let prompt: Vec<u32> = (2..40).collect();
    let answer = |master: &Master, more: &[&str]| {
        let more = [&["--encode", "q4"], more].concat();
        master.answer_of(&demo_model(), &prompt, 12, &[], &more).logprob_bits
    };
    let whole = answer(&Master::alone(), &calibrate);
    assert_eq!(answer(&master, &calibrate), whole);
    assert_ne!(answer(&master, &[]), whole, "other weights, other numbers");
}

#[test]
fn a_converted_model_is_what_would_be_pushed_of_it() {
    let master = Master::alone();
    let home = tempfile::tempdir().expect("a temporary folder");
    let (model, text) = (path(&demo_model()), path(&demo_model().join("heldout.txt")));
    let calibrate = ["--encode", "q4", "--calibrate", &*text];
    let prompt: Vec<u32> = (2..40).collect();
    let answer =
        |model: &Path, more: &[&str]| master.answer_of(model, &prompt, 12, &[], more).logprob_bits;
    let pushed = answer(&demo_model(), &calibrate);
    for format in ["mlx", "safetensors"] {
        let out = home.path().join(format);
        let args = ["convert", &model, "--to", format, "--out", &path(&out)];
        let finished = master.run(&[&args[..], &calibrate].concat()).success();
        assert!(!finished.stderr.contains(RUNS), "remembered: {}", finished.stderr);
        assert_eq!(answer(&out, &[]), pushed, "{format}");
    }
    let refused = |more: &[&str]| {
        let out = path(&home.path().join("refused"));
        let args = ["convert", &model, "--out", &out, "--calibrate", &text];
        master.run(&[&args[..], more].concat()).refusal()
    };
    assert!(refused(&["--to", "gguf", "--encode", "q4_k"]).contains("safetensors or mlx"));
    assert!(refused(&["--to", "mlx", "--encode", "q8"]).contains("--encode q6, q5 or q4"));
    assert!(refused(&["--to", "mlx"]).contains("--calibrate"));
}

#[test]
fn a_text_is_run_for_what_fits_alone() {
    let master = Master::alone();
    let (model, text) = (path(&demo_model()), path(&demo_model().join("heldout.txt")));
    let plan = |offer: &str| {
        let calibrate = ["plan", &*model, "--encode", "q4", "--calibrate", &*text];
        master.run(&[&calibrate[..], &["--local-memory", "0", "--what-if", offer]].concat())
    };
    let small = plan("small:1MiB");
    assert!(!small.stderr.contains(RUNS), "{}", small.stderr);
    assert!(small.refusal().contains("does not fit"));
    assert!(plan("large:1GiB").success().stderr.contains(RUNS), "nobody remembers it");
}

#[test]
fn a_text_that_says_nothing_is_refused_before_anybody_is_asked_for() {
    // Nobody is there, which would be said as soon as somebody was asked.
    let master = Master::at(["127.0.0.1:1"]);
    let home = tempfile::tempdir().expect("a temporary folder");
    let model = path(&demo_model());
    let refused = |encode: &str, name: &str, bytes: Option<&[u8]>| {
        let text = home.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&text, bytes).expect("written");
        }
        let text = path(&text);
        let args = ["plan", &model, "--encode", encode, "--calibrate", &text];
        let refusal = master.run(&args).refusal();
        assert!(refusal.contains(&text) && refusal.contains("--calibrate"), "{refusal}");
        refusal
    };
    assert!(refused("q4", "missing", None).contains("No such file"));
    assert!(refused("q4", "short", Some(b"A few words.")).contains("expected at least 64"));
    assert!(refused("q4", "bytes", Some(&[0xff; 999])).contains("byte 0"));
    assert!(refused("q8", "unused", Some(b"A few words.")).contains("q6, q5, q4"));
    assert!(refused("as-stored", "unused", None).contains("--encode"));
    let mute = home.path().join("mute");
    copy(&demo_model(), &mute);
    std::fs::remove_file(mute.join("tokenizer.json")).expect("it was copied");
    let text = path(&demo_model().join("heldout.txt"));
    let args = ["plan", &path(&mute), "--encode", "q4", "--calibrate", &text];
    let refusal = master.run(&args).refusal();
    assert!(refusal.contains("--calibrate") && refusal.contains("tokenizer.json"), "{refusal}");
}
