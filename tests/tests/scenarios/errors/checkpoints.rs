//! Checkpoints that cannot be used.
use std::path::Path;

use cake_tests::Master;
use cake_tests::master::path;
use serde_json::json;

use super::{assert_says, copy_of, edit_config};

/// The sentence with which `run` refuses a model.
#[track_caller]
fn refusal(model: &Path) -> String {
    Master::alone().run(&["run", &path(model), "--prompt-ids", "1,2", "--json"]).refusal()
}

/// The sentence about a model whose weights are these bytes.
#[track_caller]
fn refusal_of_weights(bytes: &[u8]) -> String {
    let model = copy_of("llama");
    std::fs::write(model.path().join("model.safetensors"), bytes).expect("written");
    let sentence = refusal(model.path());
    assert_says(&sentence, &["model.safetensors"]);
    sentence
}

/// A safetensors file of this header and so many bytes of data.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

#[test]
fn an_empty_file() {
    refusal_of_weights(b"");
}

#[test]
fn a_header_longer_than_the_file() {
    refusal_of_weights(&[0xff, 0xff, 0, 0, 0, 0, 0, 0, b'{']);
}

#[test]
fn a_hostile_header_length() {
    refusal_of_weights(&[0xff; 64]);
}

#[test]
fn a_header_that_is_not_json() {
    refusal_of_weights(&file("{\"a\":", 0));
}

#[test]
fn overlapping_tensors() {
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    assert_says(&refusal_of_weights(&file(header, 6)), &["\"b\"", "2"]);
}

#[test]
fn a_tensor_of_the_wrong_size() {
    let header = r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}}"#;
    assert_says(&refusal_of_weights(&file(header, 4)), &["\"a\"", "16", "4"]);
}

#[test]
fn a_file_cut_short() {
    let model = copy_of("llama");
    let file = model.path().join("model.safetensors");
    let bytes = std::fs::read(&file).expect("the weights");
    std::fs::write(&file, &bytes[..bytes.len() - 1]).expect("written");
    assert_says(&refusal(model.path()), &["model.safetensors"]);
}

#[test]
fn a_pointer_in_place_of_the_weights() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    assert_says(&refusal_of_weights(pointer), &["LFS"]);
}

#[test]
fn all_missing_files_of_an_index_are_named() {
    let model = copy_of("llama-sharded");
    let mut files: Vec<_> = std::fs::read_dir(model.path())
        .expect("the copy")
        .map(|entry| entry.expect("a listed file").path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "safetensors"))
        .filter(|file| file.file_name().is_some_and(|name| name != "expected.safetensors"))
        .collect();
    files.sort();
    let mut names = Vec::new();
    for file in [&files[1], &files[3]] {
        std::fs::remove_file(file).expect("removed");
        names.push(file.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned());
    }
    assert_says(&refusal(model.path()), &[&names[0], &names[1]]);
}

#[test]
fn an_unknown_architecture() {
    let model = copy_of("llama");
    edit_config(model.path(), |config| config["architectures"] = json!(["MambaForCausalLM"]));
    assert_says(&refusal(model.path()), &["MambaForCausalLM"]);
}

#[test]
fn an_unsupported_rope() {
    let model = copy_of("llama");
    edit_config(model.path(), |config| {
        config["rope_parameters"] =
            json!({ "rope_type": "xpos", "rope_theta": 10000.0, "factor": 4.0 });
    });
    assert_says(&refusal(model.path()), &["xpos"]);
}

#[test]
fn a_config_that_is_not_json() {
    let model = copy_of("llama");
    std::fs::write(model.path().join("config.json"), "{").expect("written");
    assert_says(&refusal(model.path()), &["config.json"]);
}

#[test]
fn a_missing_tokenizer() {
    let model = copy_of("llama");
    std::fs::remove_file(model.path().join("tokenizer.json")).expect("removed");
    let sentence = Master::alone().run(&["run", &path(model.path()), "hello", "--json"]).refusal();
    assert_says(&sentence, &["tokenizer.json"]);
}

#[test]
fn a_tokenizer_or_template_that_is_broken_and_why() {
    let model = copy_of("llama");
    std::fs::write(model.path().join("chat_template.jinja"), "hello\n{% if %}").expect("written");
    let args = ["run", &path(model.path()), "hello", "--json"];
    let sentence = Master::alone().run(&args).refusal();
    assert_says(&sentence, &["chat_template.jinja", "syntax error", "2"]);
    let raw = Master::alone().run(&[&args[..], &["--raw", "--max-tokens", "1"]].concat()).success();
    assert_says(&raw.stderr, &["warning: the chat template", "syntax error"]);
    std::fs::write(model.path().join("tokenizer.json"), "{\n\"a\": }").expect("written");
    let sentence = Master::alone().run(&args).refusal();
    assert_says(&sentence, &["tokenizer.json", "line 2"]);
}

#[test]
fn a_model_that_is_nowhere_says_where_it_was_looked_for() {
    let master = Master::alone();
    let hub = tempfile::tempdir().expect("a temporary folder");
    let mut command = master.bare(&["run", "kitchen/missing-model", "hello"]);
    command.env("HF_HUB_CACHE", hub.path());
    let finished = cake_tests::Running::start(&mut command).finish(cake_tests::process::DEADLINE);
    let hub = path(hub.path());
    assert_says(&finished.refusal(), &["kitchen/missing-model", "looked for", &hub]);
}

/// Headers are enough to plan with, before a model is downloaded; to all that would push or compute, the model is not there.
#[cfg(target_os = "linux")]
#[test]
fn a_model_of_headers_alone_is_planned_and_nothing_else() {
    let model = copy_of("llama-sharded");
    for file in std::fs::read_dir(model.path()).expect("a directory") {
        let file = file.expect("a file").path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            let whole = std::fs::read(&file).expect("the weights");
            let header = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight")) as usize;
            std::fs::write(&file, &whole[..header]).expect("the header");
            let hollow = std::fs::File::options().write(true).open(&file).expect("there");
            hollow.set_len(whole.len() as u64).expect("a hole");
        }
    }
    let plan = |more: &[&str]| {
        let model = path(model.path());
        Master::alone().run(&[&["plan", &model, "--what-if", "phone:1GiB"], more].concat())
    };
    let planned = plan(&["--json"]).json();
    assert_eq!(planned["headers_only"], true, "{planned}");
    assert_eq!(planned["plan"]["stages"][0]["device"], "phone");
    let said = plan(&[]).success().stderr;
    assert_says(&said, &["and 5 more hold", "can be planned, and cannot run"]);
    assert_says(&refusal(model.path()), &["holds a header and no weights", "5 other files"]);
}
