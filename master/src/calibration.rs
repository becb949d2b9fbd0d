//! Where errors of a model's weights count: a text is run through it, layer after layer, before its weights are encoded, and
//! what each matrix is multiplied with is added up ([`Importance`]). What was found is remembered.
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Checkpoint, Digest, Importance, LayerRange, Lies, MappedTensor, Scheme};
use cake_engine::{
    Batch, BatchItem, DeviceKind, Embedding, EngineOptions, Stage, StateSlots, Tally,
};
use cake_identity::files::replace;

use crate::model::Model;
use crate::text::{self, Text};

/// Tokens of a text that are run.
const TOKENS: usize = 2048;
/// Tokens that see each other.
const PIECE: usize = 512;
/// Tokens that say something.
const LEAST_TOKENS: usize = 64;
/// Bytes of a text in which so many tokens surely begin.
const TEXT_BYTES: u64 = 128 << 10;
/// The largest file of what was found that is read.
const KEPT_BYTES: u64 = 256 << 20;
/// Where that is, below the master's state.
const FOLDER: &str = "calibrations";
/// Changes whenever the same text and model say something else than before.
const VERSION: u32 = 1;

/// Why a text says nothing of a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text cannot be read.
    #[error("{path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is none.
    #[error("byte {at} of {path} is none of a text in UTF-8")]
    NotText {
        /// The file.
        path: PathBuf,
        /// Where the first byte is that is not.
        at: usize,
    },
    /// It is too short.
    #[error(
        "{path}, which --calibrate names, has {found} tokens, expected at least {LEAST_TOKENS}"
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Its tokens.
        found: usize,
    },
    /// A part of the model does not fit.
    #[error(
        "to run a text through the model (--calibrate) takes {} of the master's memory at once, and {} are free",
        format_bytes(*needed), format_bytes(*free)
    )]
    NoRoom {
        /// Bytes that one of its parts takes.
        needed: u64,
        /// Bytes that this machine has free.
        free: u64,
    },
    /// Nobody waits for it any more.
    #[error("nobody waits any more for what a text says of the model")]
    Unwanted,
    /// The model has no tokenizer, or it does not take the text.
    #[error("--calibrate reads a text as the model does: {0}")]
    Text(#[from] text::Error),
    /// The model's weights cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] cake_checkpoint::Error),
    /// They cannot be computed with.
    #[error(transparent)]
    Engine(#[from] cake_engine::Error),
}

/// A text of which models are asked what counts.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The file that it is from.
    pub path: PathBuf,
    words: String,
}

/// Its tokens, as a model reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What the model expects before a text.
    lead: Vec<u32>,
    ids: Vec<u32>,
}

impl Sample {
    /// Reads the beginning of a file, as far as it is run.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::NotText`].
    pub fn read(path: &Path) -> Result<Sample, Error> {
        let read = || {
            let mut bytes = Vec::new();
            std::fs::File::open(path)?.take(TEXT_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let path = path.to_owned();
        let mut bytes = match read() {
            Ok(bytes) => bytes,
            Err(source) => return Err(Error::Read { path, source }),
        };
        let is_cut = bytes.len() as u64 == TEXT_BYTES;
        if let Err(error) = std::str::from_utf8(&bytes) {
            let at = error.valid_up_to();
            // Unless the bound cuts a character.
            if error.error_len().is_some() || !is_cut {
                return Err(Error::NotText { path, at });
            }
            bytes.truncate(at);
        }
        Ok(Sample { path, words: String::from_utf8_lossy(&bytes).into_owned() })
    }
}

impl Reading {
    /// The first tokens of a text.
    ///
    /// # Errors
    /// [`Error::Short`], [`Error::Text`].
    pub fn of(sample: &Sample, text: &Text) -> Result<Reading, Error> {
        let (lead, mut ids) = text.encode_apart(&sample.words)?;
        if ids.len() < LEAST_TOKENS {
            return Err(Error::Short { path: sample.path.clone(), found: ids.len() });
        }
        ids.truncate(TOKENS);
        Ok(Reading { lead, ids })
    }

    /// The tokens in pieces of at most so many, each as if it was a text.
    fn pieces(&self, most: usize) -> Vec<Vec<u32>> {
        let own = most.saturating_sub(self.lead.len()).max(1);
        self.ids.chunks(own).map(|ids| [&self.lead[..], ids].concat()).collect()
    }
}

/// What a model's matrices meet when it reads these tokens: its layers are computed one after the other, or those together
/// that cannot be parted, mapped where they lie together in its files. `go_on` hears how many layers are done, and says whether
/// somebody still waits.
///
/// # Errors
/// [`Error`] about the model.
pub fn measure(
    checkpoint: &Checkpoint,
    reading: &Reading,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Importance, Error> {
    // Of its own: whoever sends weights does not have them mapped.
    let checkpoint = Arc::new(Checkpoint::open_at(checkpoint.location.clone())?);
    let (model, config) = (Model::new(checkpoint.clone(), Scheme::AsStored), &checkpoint.config);
    let pieces = reading.pieces(PIECE.min(config.max_position_embeddings));
    let rows = pieces.iter().map(Vec::len).max().unwrap_or(0);
    let parts = config.pieces(LayerRange::new(0, config.layers.len()));
    let needed = parts.iter().map(|layers| held(&checkpoint, *layers)).max().unwrap_or(0)
        + cake_engine::scratch_bytes(
            DeviceKind::default(),
            config,
            rows,
            rows,
            cake_engine::default_threads(),
        );
    let free = cake_platform::free_memory();
    if needed > free {
        return Err(Error::NoRoom { needed, free });
    }
    let blocks = cake_engine::blocks_for(rows);
    let plain = EngineOptions { state_slots: 1, ..EngineOptions::new(blocks) };
    let mut hidden = {
        let ends = model.ends()?;
        let others = |name: &str| ends.others.get(name).cloned();
        let embedding = Embedding::new(config, ends.embedding.clone(), &others, &plain)?;
        let rows = pieces.iter().map(|ids| embedding.forward(ids));
        rows.collect::<Result<Vec<_>, _>>()?
    };
    let tally = Arc::new(Tally::default());
    let options = EngineOptions { tally: Some(tally.clone()), ..plain };
    let mut importance = Importance::default();
    for layers in parts {
        if !go_on(layers.start) {
            return Err(Error::Unwanted);
        }
        let mut weights: HashMap<String, MappedTensor> = HashMap::new();
        for layer in layers.iter() {
            weights.extend(model.mapped_layer(layer)?);
        }
        let find = |name: &str| weights.get(name).cloned();
        let mut stage = Stage::load(config, layers, &find, &options)?;
        for (ids, hidden) in pieces.iter().zip(&mut hidden) {
            let item = BatchItem {
                sequence: 1,
                position: 0,
                rows: ids.len(),
                prompt: true,
                blocks: (0..blocks as u32).collect(),
                known: 0,
                state: Some(StateSlots { from: None, to: 0 }),
            };
            *hidden = stage.forward(&Batch { items: vec![item] }, std::mem::take(hidden))?;
        }
        let met = tally.take();
        importance.add(met.iter().map(|(weight, met)| (&**weight, met)), config.hidden_size);
    }
    cake_engine::give_back();
    Ok(importance)
}

/// Bytes of layers that are held in memory of the process while they compute.
fn held(checkpoint: &Checkpoint, layers: LayerRange) -> u64 {
    let gathered = layers.iter().flat_map(|layer| checkpoint.layer_tensors(layer));
    let gathered = gathered.filter(|tensor| tensor.lies != Lies::Together);
    let turned = cake_engine::copied_bytes(&checkpoint.config.layers[layers.start..layers.end]);
    gathered.map(|tensor| tensor.bytes).fold(turned, u64::saturating_add)
}

/// The same, remembered below `directory` for the next time.
///
/// # Errors
/// [`Error`].
pub fn calibrate(
    checkpoint: &Checkpoint,
    reading: &Reading,
    directory: &Path,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Importance, Error> {
    let (identity, model) = (checkpoint.identity()?, checkpoint.whole());
    let whose = format!("{VERSION} {identity} {model:?} {reading:?}");
    let folder = directory.join(FOLDER);
    let kept = folder.join(format!("{}.json", Digest::of(whose.as_bytes())));
    if let Some(importance) = recall(&kept) {
        return Ok(importance);
    }
    let importance = measure(checkpoint, reading, go_on)?;
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| replace(&kept, importance.to_json().as_bytes()));
    if let Err(error) = written {
        tracing::warn!(%error, path = %kept.display(), "what a text said of the model is not remembered");
    }
    Ok(importance)
}

/// What was found before; nothing if nobody knows any more.
fn recall(path: &Path) -> Option<Importance> {
    let mut json = Vec::new();
    std::fs::File::open(path).ok()?.take(KEPT_BYTES).read_to_end(&mut json).ok()?;
    Importance::from_json(&json)
}

#[cfg(test)]
mod tests;
