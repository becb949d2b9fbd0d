//! Opening a checkpoint: configuration, files, then the check that together they are the model.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::weights::{gather, read_bounded};
use super::{CatalogError, Checkpoint, CheckpointFile, OuterTensors, Tensor};
use crate::config::{MAX_CONFIG_BYTES, ModelConfig};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::family::Role;
use crate::generation;
use crate::locate::Location;
use crate::range::LayerRange;
use crate::safetensors::header::TensorInfo;

/// Element types of weights that the engine computes with.
const WEIGHT_TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

/// See [`Checkpoint::open_at`].
pub(super) fn open(location: Location) -> Result<Checkpoint, Error> {
    let config_path = location.directory.join("config.json");
    let config_json = read_bounded(&config_path, MAX_CONFIG_BYTES as u64 + 1)?;
    let config = ModelConfig::parse(&config_json)
        .map_err(|cause| Error::Config { path: config_path, cause })?;
    let mut warnings = Vec::new();
    let generation = generation::read(&location.directory, &mut warnings);
    let weights = gather(&location, &config, &mut warnings)?;
    let data_starts: Vec<u64> = weights.files.iter().map(|file| file.header.data_start).collect();
    let mut tensors = Vec::with_capacity(weights.tensors.len());
    for (file, info) in weights.tensors {
        let role = role_of(&info, &config)?;
        let TensorInfo { name, dtype, shape, start, end } = info;
        let (offset, bytes) = (data_starts[file] + start, end - start);
        tensors.push(Tensor { name, file, dtype, shape, offset, bytes, role });
    }
    check_model(&tensors, &config)?;
    warn_about(&tensors, &config, &mut warnings);

    let mut layers = vec![Vec::new(); config.num_layers];
    for (index, tensor) in tensors.iter().enumerate() {
        if let Role::Layer { layer, .. } = tensor.role {
            layers[layer].push(index); // In range: such a role is only given below num_layers.
        }
    }
    for layer in &mut layers {
        layer.sort_by(|&a, &b| tensors[a].entry().order().cmp(&tensors[b].entry().order()));
    }
    let find = |role: Role| tensors.iter().position(|tensor| tensor.role == role);
    let outer = OuterTensors {
        embedding: find(Role::Embedding).expect("checked: every required tensor is there"),
        final_norm: find(Role::FinalNorm).expect("checked: every required tensor is there"),
        head: find(Role::Head),
    };
    let maps = weights.files.iter().map(|_| Mutex::new(None)).collect();
    let mut files = Vec::with_capacity(weights.files.len());
    let mut handles = Vec::with_capacity(weights.files.len());
    for file in weights.files {
        let header_digest = file.header.digest;
        files.push(CheckpointFile { path: file.path, bytes: file.bytes, header_digest });
        handles.push(file.handle);
    }
    Ok(Checkpoint {
        location,
        config_json,
        config,
        generation,
        files,
        tensors,
        warnings,
        handles,
        maps,
        layers,
        outer,
    })
}

/// A tensor the model cannot do without.
pub(super) struct Required {
    pub(super) name: String,
    shape: Vec<u64>,
    layer: Option<usize>,
}

/// Every tensor the model cannot do without: those outside the layers, then layer by layer.
pub(super) fn required_tensors(config: &ModelConfig) -> Vec<Required> {
    let family = config.family;
    let outer = family.outer_tensors(config).into_iter();
    let outer = outer.map(|(name, shape)| Required { name: name.to_owned(), shape, layer: None });
    let leaves = family.layer_tensors(config);
    let of_layer = |layer| {
        leaves.iter().map(move |(leaf, shape)| Required {
            name: family.layer_tensor_name(layer, leaf),
            shape: shape.clone(),
            layer: Some(layer),
        })
    };
    outer.chain((0..config.num_layers).flat_map(of_layer)).collect()
}

fn role_of(tensor: &TensorInfo, config: &ModelConfig) -> Result<Role, CatalogError> {
    match config.family.classify(&tensor.name, config.num_layers)? {
        // Some tied files store the head as well; the embedding is what counts.
        Role::Head if config.tie_word_embeddings => Ok(Role::Ignored),
        role => Ok(role),
    }
}

/// Checks types, shapes and completeness.
fn check_model(tensors: &[Tensor], config: &ModelConfig) -> Result<(), CatalogError> {
    let required = required_tensors(config);
    let shapes: HashMap<&str, &[u64]> =
        required.iter().map(|required| (&*required.name, &*required.shape)).collect();
    let used = || tensors.iter().filter(|tensor| tensor.role != Role::Ignored);
    for tensor in used() {
        let name = || tensor.name.clone();
        let Some(&expected) = shapes.get(tensor.name.as_str()) else {
            let reason = "the configuration asks for no such bias or norm";
            return Err(CatalogError::UnexpectedTensor { tensor: name(), reason });
        };
        if !WEIGHT_TYPES.contains(&tensor.dtype) {
            let dtype = tensor.dtype;
            return Err(CatalogError::UnsupportedDtype { tensor: name(), dtype });
        }
        if tensor.shape != expected {
            let (expected, found) = (expected.to_vec(), tensor.shape.clone());
            return Err(CatalogError::ShapeMismatch { tensor: name(), expected, found });
        }
    }
    let there: HashSet<&str> = used().map(|tensor| tensor.name.as_str()).collect();
    let missing: Vec<&Required> =
        required.iter().filter(|required| !there.contains(required.name.as_str())).collect();
    let mut has_tensors = vec![false; config.num_layers];
    for tensor in used() {
        if let Role::Layer { layer, .. } = tensor.role {
            has_tensors[layer] = true;
        }
    }
    let bare = missing.iter().filter_map(|required| required.layer).filter(|&n| !has_tensors[n]);
    let bare = runs(bare);
    if !bare.is_empty() {
        return Err(CatalogError::LayerCountMismatch {
            expected: config.num_layers,
            missing: bare,
        });
    }
    if !missing.is_empty() {
        let tensors = missing.iter().map(|required| required.name.clone()).collect();
        return Err(CatalogError::MissingTensors { tensors });
    }
    Ok(())
}

/// Ascending layer numbers, possibly repeated, as ranges.
fn runs(layers: impl Iterator<Item = usize>) -> Vec<LayerRange> {
    let mut ranges: Vec<LayerRange> = Vec::new();
    for layer in layers {
        match ranges.last_mut() {
            Some(last) if layer <= last.end => last.end = last.end.max(layer + 1),
            _ => ranges.push(LayerRange::new(layer, layer + 1)),
        }
    }
    ranges
}

fn warn_about(tensors: &[Tensor], config: &ModelConfig, warnings: &mut Vec<String>) {
    let prefix = config.family.layer_prefix;
    let number = |tensor: &&Tensor| {
        let (number, _) = tensor.name.strip_prefix(prefix)?.split_once('.')?;
        number.parse::<usize>().ok().filter(|&number| number >= config.num_layers)
    };
    let extra = tensors.iter().filter(|tensor| number(tensor).is_some()).count();
    if extra > 0 {
        warnings.push(format!(
            "{extra} tensors belong to layers past the {} that the configuration names; they are not used",
            config.num_layers
        ));
    }
    for &id in &config.eos_token_ids {
        if id as usize >= config.vocab_size {
            let vocab = config.vocab_size;
            warnings.push(format!("eos_token_id {id} is outside the vocabulary of {vocab}"));
        }
    }
}
