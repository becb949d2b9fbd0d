//! What tests share: golden checkpoints, and small files and checkpoints made by hand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::catalog::Checkpoint;
use crate::encoding::{Affine, Encoding, Part, PartSpec};
use crate::error::Error;
use crate::locate::locate_in;
use crate::model::ModelSpec;

#[path = "../../../tests/golden/names.rs"]
mod names;

/// Directory of a golden checkpoint.
pub(crate) fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// Directory of a golden model in GGUF files.
pub(crate) fn golden_gguf_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden-gguf").join(name)
}

/// Every golden checkpoint.
pub(crate) fn golden_names() -> Vec<String> {
    names::names(&golden_path(""))
}

/// A golden checkpoint.
pub(crate) fn golden(name: &str) -> Checkpoint {
    open(&golden_path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Opens a path as a person would, without any Hub cache.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Error> {
    Checkpoint::open_at(locate_in(path.to_str().unwrap(), &[])?)
}

/// The bytes of a safetensors file with that header text and data.
pub(crate) fn file_of(json: impl AsRef<[u8]>, data: &[u8]) -> Vec<u8> {
    let json = json.as_ref();
    [&(json.len() as u64).to_le_bytes(), json, data].concat()
}

/// Name, dtype, shape and bytes of a tensor to be written.
pub(crate) type Made = (String, &'static str, Vec<u64>, Vec<u8>);

/// A file of those tensors in that order, as MLX writes it: no padding, null metadata.
pub(crate) fn unpadded_file(tensors: &[Made]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), Value::Null);
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    file_of(Value::Object(header).to_string(), &data)
}

/// A norm of the second layer of [`TinyCheckpoint::indexed`].
pub(crate) const NORM: &str = "model.layers.1.input_layernorm.weight";

/// Whether opening it found something odd with those words.
pub(crate) fn warned(checkpoint: &Checkpoint, words: &str) -> bool {
    checkpoint.warnings.iter().any(|warning| warning.contains(words))
}

/// A tiny Llama whose files a test can break in one way.
pub(crate) struct TinyCheckpoint {
    pub(crate) directory: TempDir,
    pub(crate) config: Value,
    /// File name → tensors.
    pub(crate) files: BTreeMap<String, Vec<Made>>,
    /// The index; null for none.
    pub(crate) index: Value,
}

impl TinyCheckpoint {
    /// `layers` layers in one file.
    pub(crate) fn single(layers: usize) -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4,
            "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 6,
            "vocab_size": 5, "rms_norm_eps": 1e-5, "max_position_embeddings": 32,
            "eos_token_id": 1,
        });
        let files = BTreeMap::from([("model.safetensors".to_owned(), tensors(&config))]);
        TinyCheckpoint { directory: TempDir::new().unwrap(), config, files, index: Value::Null }
    }

    /// Two layers in two files with an index; the second file holds layer 1.
    pub(crate) fn indexed() -> Self {
        let mut tiny = TinyCheckpoint::single(2);
        let all = tiny.files.remove("model.safetensors").unwrap();
        let (second, first) = all.into_iter().partition(|made| made.0.contains(".1."));
        tiny.files.insert(file_name(1), first);
        tiny.files.insert(file_name(2), second);
        tiny.reindex();
        tiny
    }

    /// One layer whose matrices are all packed with 4 bits in groups of 32, scales in BF16.
    pub(crate) fn packed() -> Self {
        let mut tiny = TinyCheckpoint::single(1);
        tiny.config["hidden_size"] = 64.into();
        tiny.config["intermediate_size"] = 128.into();
        tiny.config["quantization"] = json!({"group_size": 32, "bits": 4});
        let format = Affine::new(4, 32).expect("supported");
        tiny.files.insert("model.safetensors".into(), tensors(&tiny.config));
        for (name, _, shape, _) in tensors(&tiny.config) {
            if let Some(module) = name.strip_suffix(".weight").filter(|_| shape.len() == 2) {
                tiny.pack(module, &shape, format);
            }
        }
        tiny
    }

    /// Replaces the tensors of a module by packed ones.
    pub(crate) fn pack(&mut self, module: &str, shape: &[u64], format: Affine) {
        let file = self.file("model.safetensors");
        file.retain(|made| !made.0.starts_with(&format!("{module}.")));
        let parts = Encoding::Affine(format).parts([shape[0], shape[1]]).expect("whole groups");
        for PartSpec { part, shape, .. } in parts {
            let name = format!("{module}{}", part.ending());
            file.push(match part {
                Part::Weight => {
                    let mut words = made(&name, &[shape[0], shape[1] * 2]);
                    (words.1, words.2) = ("U32", shape);
                    words
                }
                _ => made(&name, &shape),
            });
        }
    }

    /// Makes the index say what the files hold.
    pub(crate) fn reindex(&mut self) {
        let mut map = serde_json::Map::new();
        let mut total = 0;
        for (file, tensors) in &self.files {
            for (name, _, _, bytes) in tensors {
                map.insert(name.clone(), Value::from(file.as_str()));
                total += bytes.len();
            }
        }
        self.index = json!({"metadata": {"total_size": total}, "weight_map": map});
    }

    /// The tensors of one file.
    pub(crate) fn file(&mut self, name: &str) -> &mut Vec<Made> {
        self.files.get_mut(name).unwrap()
    }

    /// The tensor of that name, wherever it is.
    pub(crate) fn tensor(&mut self, name: &str) -> &mut Made {
        self.files.values_mut().flatten().find(|made| made.0 == name).unwrap()
    }

    /// Writes everything.
    pub(crate) fn write(&self) -> &Path {
        let directory = self.directory.path();
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        for (name, tensors) in &self.files {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, unpadded_file(tensors)).unwrap();
        }
        if !self.index.is_null() {
            let path = directory.join("model.safetensors.index.json");
            std::fs::write(path, self.index.to_string()).unwrap();
        }
        directory
    }

    /// Writes everything and opens it.
    pub(crate) fn open(&self) -> Result<Checkpoint, Error> {
        open(self.write())
    }

    /// Writes everything and returns the refusal.
    pub(crate) fn refusal(&self) -> Error {
        self.open().map(|checkpoint| checkpoint.tensors).expect_err("must be refused")
    }
}

/// Name of file `number` of two.
pub(crate) fn file_name(number: usize) -> String {
    format!("model-{number:05}-of-00002.safetensors")
}

/// A BF16 tensor whose bytes differ from those of every other name.
pub(crate) fn made(name: &str, shape: &[u64]) -> Made {
    let count = shape.iter().product::<u64>() as usize * 2;
    let seed = blake3::hash(name.as_bytes());
    let bytes = seed.as_bytes().iter().cycle().take(count).copied().collect();
    (name.to_owned(), "BF16", shape.to_vec(), bytes)
}

/// Every tensor the configuration asks for, in no special order.
pub(crate) fn tensors(config: &Value) -> Vec<Made> {
    let config = ModelSpec::parse(config.to_string().as_bytes()).unwrap();
    let outer = config.outer_tensors();
    let mut all: Vec<Made> = outer.iter().map(|(name, _, shape)| made(name, shape)).collect();
    for (layer, spec) in config.layers.iter().enumerate() {
        let name = |leaf: String| config.layer_tensor_name(layer, &leaf);
        all.extend(spec.tensors().iter().map(|it| made(&name(it.leaf()), &it.shape)));
    }
    all
}
