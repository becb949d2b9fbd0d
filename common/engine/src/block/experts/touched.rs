//! What of a mixture at real widths a decoded token reads, by the pages of the file that are in this process's memory
//! afterwards: the file is as large as one layer of Qwen3-30B-A3B, and nearly all of it a hole.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cake_checkpoint::{Checkpoint, LayerRange, ModelSpec};

use crate::testing::Random;
use crate::{Batch, BatchItem, EngineOptions, Stage};

/// The most that may be read for each byte that must be: pages come some at a time.
const MOST: f64 = 1.15;

const CONFIG: &str = r#"{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":2048,"num_hidden_layers":1,
    "num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,"vocab_size":64,
    "rms_norm_eps":1e-6,"max_position_embeddings":4096,"num_experts":128,"num_experts_per_tok":8,
    "moe_intermediate_size":768,"norm_topk_prob":true}"#;

/// Bytes of a number of type bf16.
const BF16: u64 = 2;

/// A checkpoint of this model whose matrices are zeros, but for the router's, and whose norms are ones.
fn write(directory: &Path, model: &ModelSpec) {
    let outer = model.outer_tensors().into_iter().map(|(name, _, shape)| (name, shape));
    let of_layer = model.layers[0].tensors().into_iter();
    let of_layer = of_layer.map(|it| (model.layer_tensor_name(0, &it.leaf()), it.shape));
    let mut header = serde_json::Map::new();
    let mut written = Vec::new();
    let mut end = 0;
    for (name, shape) in outer.chain(of_layer) {
        let elements: u64 = shape.iter().product();
        let offsets = [end, end + elements * BF16];
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets});
        let mut random = Random::new(7);
        let number: Option<Box<dyn FnMut() -> f32>> = match shape.len() {
            1 => Some(Box::new(|| 1.0)),
            _ if name.ends_with("mlp.gate.weight") => Some(Box::new(move || random.signed())),
            _ => None,
        };
        if let Some(mut number) = number {
            let numbers =
                (0..elements).flat_map(|_| ((number().to_bits() >> 16) as u16).to_le_bytes());
            written.push((end, numbers.collect::<Vec<u8>>()));
        }
        header.insert(name, entry);
        [_, end] = offsets;
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = File::create(directory.join("model.safetensors")).unwrap();
    let start = 8 + header.len() as u64;
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0).unwrap();
    file.write_all_at(&header, 8).unwrap();
    written.iter().for_each(|(offset, bytes)| file.write_all_at(bytes, start + offset).unwrap());
    file.set_len(start + end).unwrap();
    std::fs::write(directory.join("config.json"), CONFIG).unwrap();
}

/// Bytes of this file that are in this process's memory.
fn touched(file: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = file.to_str().unwrap();
    let mut lines = maps.lines();
    let mut bytes = 0;
    while lines.by_ref().any(|line| line.ends_with(name)) {
        let resident = lines.by_ref().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kib: u64 = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        bytes += kib << 10;
    }
    bytes
}

#[test]
fn a_decoded_token_reads_the_experts_that_it_goes_to_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let model = ModelSpec::parse(CONFIG.as_bytes()).unwrap();
    write(directory.path(), &model);
    let checkpoint = Checkpoint::open(directory.path().to_str().unwrap()).unwrap();
    let bytes = |path: &str| {
        let module = model.layer_tensor_name(0, path) + ".";
        let tensors = checkpoint.tensors.iter().filter(|it| it.name.starts_with(&module));
        tensors.map(|tensor| tensor.bytes).sum()
    };
    let active = model.layers[0].active_bytes(bytes);
    let all = checkpoint.layer_bytes(0);
    assert!(active * 10 < all, "{active} of {all}");
    let file = directory.path().join("model.safetensors");
    let weights = |name: &str| {
        let tensor = checkpoint.tensors.iter().find(|tensor| tensor.name == name)?;
        Some(checkpoint.map(tensor).unwrap())
    };
    let options = EngineOptions { threads: 2, ..EngineOptions::new(1) };
    let mut stage = Stage::load(&model, LayerRange::new(0, 1), &weights, &options).unwrap();
    let loaded = touched(&file);
    let mut random = Random::new(11);
    let hidden = (0..model.hidden_size).map(|_| random.signed()).collect();
    let item = BatchItem {
        sequence: 0,
        position: 0,
        rows: 1,
        prompt: false,
        known: 0,
        state: None,
        blocks: vec![0],
    };
    let after = stage.forward(&Batch { items: vec![item] }, hidden).unwrap();
    assert!(after.iter().all(|value| value.is_finite()));
    let read = touched(&file);
    let ratio = read as f64 / active as f64;
    println!(
        "{read} bytes were read ({loaded} when it was loaded), {active} are active: {ratio:.3}"
    );
    assert!(ratio <= MOST, "{read} bytes of the file are in memory, {active} are active");
    assert!(ratio >= 1.0 / MOST, "{read} bytes of the file are in memory, {active} are active");
}
