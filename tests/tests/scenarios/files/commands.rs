//! What the commands say of good and bad input.
use std::fs;

use cake_tests::master::path;
use cake_tests::{Master, golden};
use serde_json::Value;

#[test]
fn what_is_written_is_told_to_programs_and_never_written_over() {
    let (master, llama) = (Master::alone(), path(&golden("llama").path));
    let out = path(&master.state().join("out.safetensors"));
    let said = master.json(&["merge", &llama, "--out", &out, "--json"]);
    assert_eq!(said["bytes"], fs::metadata(&out).expect("written").len());
    assert_eq!((&said["files"], &said["resumed_bytes"]), (&Value::from(1), &Value::from(0)));
    let again = master.run(&["merge", &llama, "--out", &out]);
    assert!(again.refusal().contains("is there already; --force replaces it"), "{}", again.stderr);
    master.run(&["merge", &llama, "--out", &out, "--force"]).success();
    let into = path(master.state());
    let refusal = master.run(&["split", &llama, "--out", &into]).refusal();
    assert!(refusal.contains("give a directory that is empty or not there"), "{refusal}");
}

#[test]
fn digests_tell_a_changed_tensor_from_the_others() {
    let (master, llama) = (Master::alone(), golden("llama").path);
    let digests = path(&master.state().join("llama.b3"));
    let said = master.run(&["verify", &path(&llama), "--write-digests", &digests]).success();
    assert!(said.stdout.contains("1 file is whole: 48 tensors"), "{}", said.stdout);
    let split = path(&master.state().join("split"));
    let args = ["split", &path(&llama), "--max-shard-size", "200KB", "--out", &split];
    master.run(&args).success();
    let said = master.run(&["verify", &split, "--digests", &digests]).success();
    assert!(said.stdout.ends_with("every digest is the expected one\n"), "{}", said.stdout);
    // The last byte of the first file is of a tensor.
    let mut names: Vec<_> = fs::read_dir(&split).expect("listed").flatten().collect();
    names.sort_by_key(|entry| entry.file_name());
    let weights = |name: &str| name.starts_with("model-") && name.ends_with(".safetensors");
    let file = names
        .iter()
        .map(|entry| entry.path())
        .find(|file| file.file_name().and_then(|name| name.to_str()).is_some_and(weights));
    let file = file.expect("it was split");
    let mut bytes = fs::read(&file).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&file, bytes).expect("written");
    let ended = master.run(&["verify", &split, "--digests", &digests]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches("changed  ").count(), 1, "{}", ended.stdout);
    let ended = master.run(&["verify", &split, "--digests", &digests, "--json"]);
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(said["differ"]["changed"].as_array().map(Vec::len), Some(1), "{said}");
    assert_eq!((&said["ok"], &said["tensors"]), (&Value::from(false), &Value::from(48)));
    let again = master.run(&["verify", &split, "--write-digests", &digests]).refusal();
    assert!(again.contains("a name that is not taken"), "{again}");
    let nonsense = path(&llama.join("tokenizer_config.json"));
    let refusal = master.run(&["verify", &split, "--digests", &nonsense]).refusal();
    assert!(refusal.contains("in line 1"), "{refusal}");
}

#[test]
fn a_byte_that_changed_since_an_apr_file_was_written_is_found() {
    let (master, llama) = (Master::alone(), path(&golden("llama").path));
    let out = master.state().join("llama.apr");
    master.run(&["convert", &llama, "--to", "apr", "--out", &path(&out)]).success();
    let said = master.run(&["verify", &path(&out)]).success();
    let expected = "1 file is whole, with the checksum that it ends in: 48 tensors";
    assert!(said.stdout.contains(expected), "{}", said.stdout);
    let mut bytes = fs::read(&out).expect("read");
    let at = bytes.len() - 1000;
    bytes[at] ^= 1;
    fs::write(&out, bytes).expect("written");
    let refusal = master.run(&["verify", &path(&out)]).refusal();
    assert!(refusal.contains("llama.apr") && refusal.contains("checksum"), "{refusal}");
    // Nothing is made of it either.
    let to = path(&master.state().join("out"));
    let args = ["convert", &path(&out), "--to", "safetensors", "--out", &to];
    assert!(master.run(&args).refusal().contains("checksum"));
    let names = fs::read_dir(master.state()).expect("listed").flatten();
    let left = names.filter(|it| it.file_name().to_string_lossy().starts_with("out"));
    assert_eq!(left.count(), 0);
}

#[test]
fn two_checkpoints_are_the_same_or_the_difference_is_measured() {
    let (master, qwen) = (Master::alone(), path(&golden("qwen2").path));
    let wide = path(&master.state().join("wide"));
    let args = ["convert", &qwen, "--to", "safetensors", "--encode", "f32", "--out", &wide];
    master.run(&args).success();
    let same = master.run(&["diff", &qwen, &wide]).success();
    assert!(same.stdout.starts_with("equal    "), "{}", same.stdout);
    let packed = path(&master.state().join("packed"));
    let args = ["convert", &path(&golden("llama3-tied").path), "--to", "mlx", "--encode", "q8"];
    master.run(&[&args[..], &["--out", &packed]].concat()).success();
    let ended = master.run(&["diff", &path(&golden("llama3-tied").path), &packed]);
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stdout.contains("-> affine-8-64 "), "{}", ended.stdout);
    assert!(ended.stdout.contains(": largest "), "{}", ended.stdout);
    let ended = master.run(&["diff", &qwen, &path(&golden("llama").path), "--json"]);
    let said: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(said["removed"].as_array().is_some_and(|it| !it.is_empty()), "{said}");
}

#[test]
fn statistics_are_of_the_numbers_that_weights_mean() {
    let (master, packed) = (Master::alone(), path(&golden("qwen2-mlx4").path));
    let said = master.json(&["inspect", &packed, "--stats", "--json"]);
    let stats = said["stats"].as_array().expect("a list");
    assert!(stats.iter().all(|it| it["odd"] == 0 && it["rms"].as_f64() > Some(0.0)), "{said}");
    let text = master.run(&["inspect", &packed, "--stats"]).success().stdout;
    assert!(text.contains("model.layers.0.mlp.up_proj.weight from -"), "{text}");
}

#[test]
fn what_cannot_be_written_is_refused_by_name_and_nothing_is() {
    let (master, llama) = (Master::alone(), path(&golden("llama").path));
    let out = master.state().join("out");
    let convert = |model: &str, more: &[&str]| {
        let to = path(&out);
        let ended = master.run(&[&["convert", model], more, &["--out", &to]].concat());
        assert!(!ended.status.success() && !out.exists(), "{}", ended.stdout);
        ended.stderr
    };
    let said = convert(&llama, &["--to", "mlx", "--encode", "q3"]);
    assert!(
        said.contains(
            "write as-stored, f32, f16, bf16, q8, q6, q5, q4, q8_0, q4_0, q6_k, q5_k, q4_k"
        ),
        "{said}"
    );
    let said = convert(&llama, &["--to", "apr", "--max-shard-size", "1GB"]);
    assert!(said.contains("--max-shard-size") && said.contains("safetensors or mlx"), "{said}");
    let said = convert(&llama, &["--to", "mlx", "--guess-pre-tokenizer"]);
    assert!(said.contains("only with --to gguf"), "{said}");
    let said = convert("nowhere/at-all", &["--to", "mlx"]);
    assert!(said.contains("nowhere/at-all"), "{said}");
    // What has been cut is refused before anything is written.
    let cut = master.state().join("cut");
    fs::create_dir(&cut).expect("made");
    for entry in fs::read_dir(golden("llama").path).expect("listed").flatten() {
        let bytes = fs::read(entry.path()).expect("read");
        let whole = entry.file_name() != "model.safetensors";
        let bytes = if whole { &bytes[..] } else { &bytes[..bytes.len() - 1] };
        fs::write(cut.join(entry.file_name()), bytes).expect("written");
    }
    for args in [&["verify"][..], &["merge", "--out", &path(&out)]] {
        let ended = master.run(&[args, &[&path(&cut)]].concat());
        assert!(ended.refusal().contains("file is truncated"), "{}", ended.stderr);
    }
    assert!(!out.exists());
}
