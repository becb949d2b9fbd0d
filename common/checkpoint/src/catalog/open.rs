//! Opening a checkpoint: what its container gives, then the check that it is the model.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::{Mutex, OnceLock};

use super::checkpoint::{Checkpoint, MOST_BESIDE, OuterTensors};
use super::ends::has_own_head;
use super::error::CatalogError;
use super::expected::{Expected, check_params, expected_tensors};
use super::tensor::Tensor;
use super::{biases, choosing, latents};
use crate::container::{CheckpointFile, Contents, Lies, Stored, StoredTensor};
use crate::encoding::{Encoding, Part};
use crate::error::Error;
use crate::file::read_exact_at;
use crate::generation;
use crate::layout::{Canonical, canonical};
use crate::locate::{Location, locate};
use crate::model::{ModelSpec, Names, Role, unstack};
use crate::range::LayerRange;
use crate::room::Room;

impl Checkpoint {
    /// Finds (see [`locate`]) and opens a checkpoint.
    ///
    /// # Errors
    /// [`Error`]: it is not there, a file is malformed, or the files do not make the model that the
    /// configuration describes.
    pub fn open(model: &str) -> Result<Checkpoint, Error> {
        Checkpoint::open_at(locate(model)?)
    }

    /// Opens the checkpoint at a known place: reads what the model is and its headers, and checks them.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open_at(location: Location) -> Result<Checkpoint, Error> {
        open(location)
    }
}

/// See [`Checkpoint::open_at`].
fn open(location: Location) -> Result<Checkpoint, Error> {
    let contents = location.container.open(&location.path)?;
    let Contents { spec: mut config, stored } = contents;
    let Stored { texts, files, tensors: stored, warnings: found } = stored;
    check_places(&files, &stored)?;
    let read = |tensor: &StoredTensor, offset: u64, buffer: &mut [u8]| {
        let (file, handle) = &files[tensor.file];
        read_exact_at(handle, buffer, tensor.offset + offset)
            .map_err(|cause| Error::io("read", &file.path, cause))
    };
    let Canonical { tensors: stored, called } = canonical(stored, &config, &read)?;
    let mut stored = unstack(stored, &config)?;
    latents::part(&mut stored, &mut config);
    check_places(&files, &stored)?; // A model may have an expert in a tensor of its own, too.
    if config.tie_word_embeddings && has_own_head(&files, &stored, &config)? {
        config.tie_word_embeddings = false;
    }
    let mut warnings = Vec::new();
    let generation = generation::read(&texts, &mut warnings);
    warnings.extend(found);
    let names = Names::of(&config);
    let mut tensors = Vec::with_capacity(stored.len());
    for tensor in stored {
        let role = role_of(&tensor, &names)?;
        tensors.push(Tensor { stored: tensor, role, encoding: None });
    }
    warnings.extend(biases::ignore_zeros(&mut tensors, &config, &read)?);
    let in_file = |name: &mut String| {
        if let Some(called) = called.get(name) {
            name.clone_from(called);
        }
    };
    let checked = check_model(&tensors, &config);
    let encodings = checked.map_err(|refusal| refusal.with_names(in_file))?;
    for (tensor, encoding) in tensors.iter_mut().zip(encodings) {
        tensor.encoding = encoding;
    }
    warn_about(&tensors, &config, &mut warnings);

    let mut layers = vec![Vec::new(); config.layers.len()];
    for (index, tensor) in tensors.iter().enumerate() {
        if let Role::Layer { layer, .. } = tensor.role {
            layers[layer].push(index); // In range: such a role is only given to layers that there are.
        }
    }
    for layer in &mut layers {
        layer.sort_by(|&a, &b| tensors[a].entry().order().cmp(&tensors[b].entry().order()));
    }
    let find = |role: Role| tensors.iter().position(|tensor| tensor.role == role);
    let outer = OuterTensors {
        embedding: find(Role::Embedding(Part::Weight))
            .expect("checked: every required tensor is there"),
        final_norm: find(Role::FinalNorm).expect("checked: every required tensor is there"),
        head: find(Role::Head(Part::Weight)),
    };
    let maps = files.iter().map(|_| Mutex::new(None)).collect();
    let (files, handles): (_, Vec<File>) = files.into_iter().unzip();
    let checkpoint = Checkpoint {
        location,
        config,
        whole: None,
        texts,
        generation,
        files,
        tensors: tensors.into(),
        warnings,
        handles: handles.into(),
        maps,
        layers,
        outer,
        codes: OnceLock::new(),
        shared: OnceLock::new(),
        importance: OnceLock::new(),
        beside: Room::of(MOST_BESIDE),
    };
    choosing::check(&checkpoint)?;
    Ok(checkpoint)
}

/// Checks what a container promises of its tensors, so that nothing after it need trust a format: no name twice, and all
/// bytes in a file that is there.
fn check_places(
    files: &[(CheckpointFile, File)],
    stored: &[StoredTensor],
) -> Result<(), CatalogError> {
    let mut names = HashSet::with_capacity(stored.len());
    for StoredTensor { name, file, offset, bytes, lies, .. } in stored {
        let tensor = || name.clone();
        if !names.insert(name.as_str()) {
            return Err(CatalogError::TensorTwice { tensor: tensor() });
        }
        let there = files.get(*file).map_or(0, |(file, _)| file.bytes);
        // What is made of words has as many bytes as its rows take; the words were looked at before.
        let is_made = matches!(lies, Lies::Across(_));
        if !is_made && offset.checked_add(*bytes).is_none_or(|end| end > there) {
            let (file, offset, bytes) = (*file, *offset, *bytes);
            return Err(CatalogError::TensorOutside {
                tensor: tensor(),
                file,
                offset,
                bytes,
                there,
            });
        }
    }
    Ok(())
}

fn role_of(tensor: &StoredTensor, names: &Names<'_>) -> Result<Role, CatalogError> {
    match names.role(&tensor.name)? {
        // Some tied files store the same once more.
        Role::Head(_) if names.spec().tie_word_embeddings => Ok(Role::Ignored),
        role => Ok(role),
    }
}

/// Checks types, shapes and completeness. Of each tensor that is the weight of a matrix: how the matrix is stored.
fn check_model(
    tensors: &[Tensor],
    config: &ModelSpec,
) -> Result<Vec<Option<Encoding>>, CatalogError> {
    let used = || tensors.iter().filter(|tensor| tensor.role != Role::Ignored);
    let there: HashMap<&str, &Tensor> =
        used().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let expected = expected_tensors(config, &there)?;
    let by_name: HashMap<&str, &Expected> =
        expected.iter().map(|expected| (expected.name.as_str(), expected)).collect();
    for tensor in used() {
        let Some(expected) = by_name.get(tensor.name.as_str()) else {
            let part = Part::split(&tensor.name).filter(|(_, part)| *part != Part::Weight);
            let reason = match part.is_some() {
                true => "its matrix is not packed",
                false => "the configuration asks for no such bias or norm",
            };
            return Err(CatalogError::UnexpectedTensor { tensor: tensor.name.clone(), reason });
        };
        expected.check(tensor)?;
    }
    check_params(&there)?;
    let missing: Vec<&Expected> =
        expected.iter().filter(|expected| !there.contains_key(expected.name.as_str())).collect();
    let mut has_tensors = vec![false; config.layers.len()];
    for tensor in used() {
        if let Role::Layer { layer, .. } = tensor.role {
            has_tensors[layer] = true;
        }
    }
    let bare = missing.iter().filter_map(|expected| expected.layer).filter(|&n| !has_tensors[n]);
    let bare = runs(bare);
    if !bare.is_empty() {
        return Err(CatalogError::LayerCountMismatch {
            expected: config.layers.len(),
            missing: bare,
        });
    }
    if !missing.is_empty() {
        let tensors = missing.iter().map(|expected| expected.name.clone()).collect();
        return Err(CatalogError::MissingTensors { tensors });
    }
    let encoding = |tensor: &Tensor| {
        let used = by_name.get(tensor.name.as_str()).filter(|_| tensor.role != Role::Ignored);
        used.and_then(|expected| expected.encoding())
    };
    Ok(tensors.iter().map(encoding).collect())
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

fn warn_about(tensors: &[Tensor], config: &ModelSpec, warnings: &mut Vec<String>) {
    let prefix = &*config.layer_prefix;
    let number = |tensor: &&Tensor| {
        let (number, _) = tensor.name.strip_prefix(prefix)?.split_once('.')?;
        number.parse::<usize>().ok().filter(|&number| number >= config.layers.len())
    };
    let extra = tensors.iter().filter(|tensor| number(tensor).is_some()).count();
    if extra > 0 {
        warnings.push(format!(
            "{extra} tensors belong to layers past the {} that the configuration names; they are not used",
            config.layers.len()
        ));
    }
    for beginning in &config.other_modules {
        let is_there = |tensor: &&Tensor| {
            let rest = tensor.name.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
            rest.is_some_and(|(_, leaf)| leaf.starts_with(&**beginning))
        };
        let found = tensors.iter().filter(is_there).count();
        if found > 0 {
            let module = beginning.trim_end_matches('.');
            let most = config.max_position_embeddings;
            warnings.push(format!(
                "{found} tensors of {module} of layers are not used: that is right up to {most} positions, which a context may have"
            ));
        }
    }
    if let Some(short) = config.short_context() {
        warnings.push(format!(
            "rotations differ for sequences of more than {short} positions: a context of at most so many, as it is unless more is asked for, has those of short ones, a longer context those of long ones for all that it holds"
        ));
    }
    for prefix in &config.other_prefixes {
        let found = tensors.iter().filter(|tensor| tensor.name.starts_with(&**prefix)).count();
        if found > 0 {
            warnings.push(format!(
                "{found} tensors of {} are for something else than text; they are not used",
                prefix.trim_end_matches('.')
            ));
        }
    }
    for &id in &config.eos_token_ids {
        if id as usize >= config.vocab_size {
            let vocab = config.vocab_size;
            warnings.push(format!("eos_token_id {id} is outside the vocabulary of {vocab}"));
        }
    }
}
