//! Golden files of llama.cpp's converter and quantizer, and what is read of them.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use super::*;
use crate::catalog::Checkpoint;
use crate::container::{Container, Lies};
use crate::encoding::{Encoding, GgmlType};
use crate::locate::locate_in;
use crate::model::{ModelSpec, NormSpec, Op};

pub(super) use crate::testing::golden_gguf_path as golden_gguf;

pub(super) fn open(path: &Path) -> Checkpoint {
    let location = locate_in(path.to_str().unwrap(), &[]).unwrap();
    Checkpoint::open_at(location).unwrap_or_else(|error| panic!("{error}"))
}

/// What the same model's configuration on the Hub says it is, but for what the format has in a form of its own.
fn on_the_hub(name: &str) -> ModelSpec {
    let opened = files::open(&golden_gguf(name)).unwrap();
    let model = model::Model::of(&opened).unwrap();
    let text = std::fs::read(golden_gguf(name).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&text).unwrap();
    let mut spec = ModelSpec::parse(expected["hf_config"].to_string().as_bytes()).unwrap();
    model.form(&opened, &mut spec);
    // What makes keys of latents, and what makes values, newer files have by themselves.
    spec.part_latents(|_| !name.contains("older"));
    if spec.architecture == "Glm4MoeLiteForCausalLM" {
        spec.architecture = "DeepseekV3ForCausalLM".into(); // The format has one name for both.
    }
    spec
}

/// Every golden file.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir(golden_gguf("")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let answered = paths.filter(|path| path.join("expected.json").is_file());
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let names: Vec<String> = answered.map(name).collect();
    assert!(names.len() > 20, "{names:?}");
    names
}

#[test]
fn every_golden_file_is_the_model_that_the_hub_has() {
    for name in names() {
        let checkpoint = open(&golden_gguf(&name));
        assert_eq!(checkpoint.config, on_the_hub(&name), "{name}");
        assert_eq!(checkpoint.location.name, name);
        // What predicts further tokens is not used, and a person is told.
        let predicts =
            ["qwen35-mtp-f32", "deepseek2-flash-bf16", "deepseek2-older-bf16"].contains(&&*name);
        let is_told = |warning: &String| warning.contains("layers past the");
        let told = checkpoint.warnings.iter().filter(|warning| is_told(warning)).count();
        assert_eq!((told, checkpoint.warnings.len()), (usize::from(predicts), told), "{name}");
    }
}

#[test]
fn a_file_is_called_by_its_name_and_a_directory_by_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("Small.1-GGUF");
    std::fs::create_dir(&home).unwrap();
    std::fs::copy(golden_gguf("llama-q4_0").join("model.gguf"), home.join("small-q4_0.gguf"))
        .unwrap();
    std::fs::write(home.join("mmproj-small.gguf"), "GGUF").unwrap();
    assert_eq!(open(&home.join("small-q4_0.gguf")).location.name, "small-q4_0");
    assert_eq!(open(&home).location.name, "Small.1-GGUF");
    let split = golden_gguf("qwen3-split-q8_0");
    assert_eq!(open(&split.join("model-00001-of-00003.gguf")).location.name, "model");
    // Where there are weights of the Hub's own form, the directory is theirs.
    assert!(Gguf.recognise(&home));
    std::fs::write(home.join("model.safetensors"), "x").unwrap();
    assert!(!Gguf.recognise(&home));
}

#[test]
fn rows_of_queries_and_keys_are_given_as_the_hub_has_them() {
    let llama = open(&golden_gguf("llama-f16"));
    let lies =
        |name: &str| llama.tensor(&format!("model.layers.1.self_attn.{name}.weight")).unwrap().lies;
    let Op::Attention(attention) = &llama.config.layers[1].branches[0].op else { panic!() };
    assert_eq!(lies("q_proj"), Lies::InPairs { heads: attention.heads as u64 });
    assert_eq!(lies("k_proj"), Lies::InPairs { heads: attention.kv_heads as u64 });
    assert_eq!(lies("v_proj"), Lies::Together);
    let qwen = open(&golden_gguf("qwen2-bf16"));
    assert!(qwen.tensors.iter().all(|tensor| tensor.lies == Lies::Together));
    // Read or mapped, they are the same.
    let tensor = llama.tensor("model.layers.1.self_attn.q_proj.weight").unwrap();
    let mut read = vec![0; tensor.bytes as usize];
    llama.read_at(tensor, 0, &mut read).unwrap();
    assert_eq!(llama.map(tensor).unwrap().bytes(), read);
}

#[test]
fn norms_of_gemma_are_multiplied_with_as_they_are_stored() {
    let gemma = open(&golden_gguf("gemma3-q5_1"));
    let is_whole = |norm: &NormSpec| norm.offset == 0.0;
    assert!(is_whole(&gemma.config.final_norm));
    for branch in gemma.config.layers.iter().flat_map(|layer| &layer.branches) {
        assert!(branch.pre.iter().chain(&branch.post).chain(branch.op.norms()).all(is_whole));
    }
}

#[test]
fn experts_of_one_tensor_are_taken_apart_in_whole_blocks() {
    let file = golden_gguf("qwen3moe-q4_k_m");
    let (checkpoint, opened) = (open(&file), files::open(&file).unwrap());
    let find = |name: &str| opened[0].head.tensors.iter().find(|it| it.name == name).unwrap();
    let whole = find("blk.1.ffn_down_exps.weight");
    let Kind::Blocks(kind) = whole.kind else { panic!("{whole:?}") };
    let &[count, rows, columns] = &whole.shape[..] else { panic!("{whole:?}") };
    for expert in 0..count {
        let name = format!("model.layers.1.mlp.experts.{expert}.down_proj.weight");
        let slice = checkpoint.tensor(&name).unwrap();
        let bytes = whole.bytes / count;
        assert_eq!((slice.offset, slice.bytes), (whole.start + expert * bytes, bytes));
        assert_eq!(slice.shape, [rows, kind.bytes(columns).unwrap()]);
        assert_eq!(slice.stored.encoding, Some(Encoding::Ggml(kind)));
    }
}

#[test]
fn blocks_of_each_head_stay_blocks_in_one_matrix() {
    let checkpoint = open(&golden_gguf("deepseek2-q4"));
    for (module, rows, kind) in
        [("embed_q", 4 * 32, GgmlType::Q5_0), ("unembed_out", 4 * 32, GgmlType::Q4_0)]
    {
        let tensor = checkpoint.tensor(&format!("model.layers.2.self_attn.{module}.weight"));
        let tensor = tensor.unwrap();
        assert_eq!(tensor.shape, [rows, kind.block_bytes() as u64]);
        assert_eq!(tensor.encoding, Some(Encoding::Ggml(kind)));
    }
}

#[test]
fn layers_without_heads_of_keys_are_convolutions() {
    for (name, attends) in [("lfm2-bf16", [2_usize, 4]), ("lfm2moe-q8_0", [2, 4])] {
        let checkpoint = open(&golden_gguf(name));
        let found: Vec<usize> = (0..checkpoint.config.layers.len())
            .filter(|layer| {
                let mut ops = checkpoint.config.layers[*layer].ops();
                ops.any(|op| matches!(op, Op::Attention(_)))
            })
            .collect();
        assert_eq!(found, attends, "{name}");
        let taps = checkpoint.tensor("model.layers.0.conv.conv.weight").unwrap();
        assert_eq!(taps.shape, [64, 1, 3], "{name}");
    }
}

#[test]
fn what_is_no_model_of_ours_is_stored_under_its_own_names() {
    let directory = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(golden_gguf("llama-q4_0").join("model.gguf")).unwrap();
    let at = bytes.windows(5).position(|it| it == b"llama").unwrap();
    bytes[at..at + 5].copy_from_slice(b"other");
    let path = directory.path().join("other.gguf");
    std::fs::write(&path, bytes).unwrap();
    let stored = Gguf.stored(&path).unwrap();
    assert!(stored.tensors.iter().any(|tensor| tensor.name == "blk.0.attn_q.weight"));
    assert!(
        matches!(&stored.warnings[..], [one, ..] if one.contains("\"other\"")),
        "{:?}",
        stored.warnings
    );
    assert!(
        stored.tensors.iter().any(|tensor| tensor.encoding == Some(Encoding::Ggml(GgmlType::Q4_0)))
    );
    let known = Gguf.stored(&golden_gguf("llama-q4_0")).unwrap();
    assert!(
        known.tensors.iter().any(|tensor| tensor.name == "model.layers.0.self_attn.q_proj.weight")
    );
}

#[test]
fn a_large_file_opens_without_being_read() {
    let header = std::fs::read(golden_gguf("llama-q4_0").join("model.gguf")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.gguf");
    let mut file = File::create(&path).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(20 << 30).unwrap();
    drop(file);
    let start = Instant::now();
    let checkpoint = open(&path);
    println!("20 GiB opened in {:?}", start.elapsed());
    assert_eq!(checkpoint.files[0].bytes, 20 << 30);
}
