//! Tiny checkpoints with what the reference implementation answers for them.
#[path = "../golden/names.rs"]
mod found;

use std::path::{Path, PathBuf};

use cake_checkpoint::ModelSpec;
use safetensors::SafeTensors;
use serde_json::Value;

/// A golden checkpoint.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Its directory.
    pub path: PathBuf,
    /// Decoder layers.
    pub num_layers: usize,
    /// Those that a stage may begin with.
    pub begins: Vec<usize>,
    /// Prompt of the recorded answers.
    pub prompt_ids: Vec<u32>,
    /// The greedy answer, going on past any end token.
    pub greedy_ids: Vec<u32>,
    /// How near the closest call of that was, in logits.
    pub closest: f32,
    /// Logits of the prompt, `[prompt_ids.len(), vocab_size]` row-major.
    pub logits: Vec<f32>,
}

impl Golden {
    /// The layers in as equal parts as they can be parted into, on as many workers as get one.
    pub fn spread<'a>(&self, workers: &[&'a str]) -> Vec<(&'a str, usize, usize)> {
        spread(self.num_layers, &self.begins, workers)
    }
}

/// So many layers, of which a stage may begin with these, in as equal parts as they can be parted into, on as many workers as
/// get one.
pub fn spread<'a>(
    num_layers: usize,
    begins: &[usize],
    workers: &[&'a str],
) -> Vec<(&'a str, usize, usize)> {
    let count = workers.len().min(begins.len());
    let cut = |part: usize| begins.get(begins.len() * part / count).copied().unwrap_or(num_layers);
    let part = |(index, name): (usize, &&'a str)| (*name, cut(index), cut(index + 1));
    workers[..count].iter().enumerate().map(part).collect()
}

/// Where golden checkpoints are.
pub fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/golden"))
}

/// Every golden checkpoint, ascending.
///
/// # Panics
/// If there are none.
pub fn names() -> Vec<String> {
    found::names(&directory())
}

/// The model that ships with the program.
pub fn demo_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../master/demo-model")
}

/// The golden checkpoint of that name.
///
/// # Panics
/// If it is not there whole.
#[track_caller]
pub fn golden(name: &str) -> Golden {
    let path = directory().join(name);
    let read = |file: &str| {
        std::fs::read(path.join(file)).unwrap_or_else(|e| panic!("{name}/{file}: {e}"))
    };
    let expected: Value = serde_json::from_slice(&read("expected.json"))
        .unwrap_or_else(|e| panic!("{name}/expected.json: {e}"));
    let model = ModelSpec::parse(&read("config.json"))
        .unwrap_or_else(|e| panic!("{name}/config.json: {e}"));
    let ids = |field: &str| -> Vec<u32> {
        let ids = expected[field].as_array().unwrap_or_else(|| panic!("{name}: no {field}"));
        ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
    };
    let num_layers = model.layers.len();
    let begins = (0..num_layers).filter(|layer| model.may_begin(*layer)).collect();
    let closest = expected["smallest_greedy_margin"].as_f64().expect("a margin") as f32;
    let logits = read_logits(&path.join("expected.safetensors"));
    Golden {
        num_layers,
        begins,
        closest,
        prompt_ids: ids("prompt_ids"),
        greedy_ids: ids("greedy_ids"),
        logits,
        path,
    }
}

/// The tensor `logits` of a safetensors file, f32.
///
/// # Panics
/// If there is none.
#[track_caller]
pub fn read_logits(path: &std::path::Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let logits = tensors.tensor("logits").expect("a tensor called logits");
    assert_eq!(logits.dtype(), safetensors::Dtype::F32);
    logits.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Largest absolute difference, element by element.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let worst = |worst: f32, (x, y): (&f32, &f32)| {
        let difference = (x - y).abs();
        if difference.is_nan() { f32::INFINITY } else { worst.max(difference) }
    };
    a.iter().zip(b).fold(0.0, worst)
}
