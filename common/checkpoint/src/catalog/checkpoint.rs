//! A checkpoint that was opened.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::former::Former;
use super::tensor::Tensor;
use super::{across, paired, rows_apart, strided};
use crate::anonymous::Memory;
use crate::blob::{Digest, Hasher};
use crate::container::{CheckpointFile, Lies, TextFiles};
use crate::encoding::{ENCODER_VERSION, Importance, Part, Scheme, WEIGHED_VERSION};
use crate::error::Error;
use crate::file::read_exact_at;
use crate::file_map::FileMap;
use crate::generation::GenerationConfig;
use crate::locate::Location;
use crate::mapped::MappedTensor;
use crate::model::ModelSpec;
use crate::model::Role;
use crate::room::Room;

/// Most bytes that the blobs of a checkpoint keep of what comes beside codes.
pub(super) const MOST_BESIDE: usize = 32 << 20;

/// An opened and fully checked checkpoint: each tensor the model needs is there, once, in the right
/// shape. Only headers were read.
///
/// ```
/// use cake_checkpoint::Checkpoint;
///
/// # fn main() -> Result<(), cake_checkpoint::Error> {
/// let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/llama");
/// let checkpoint = Checkpoint::open(model)?;
/// for tensor in checkpoint.tensors.iter() {
///     println!("{:?}: {} {:?}", tensor.role, tensor.stored.name, tensor.stored.shape);
/// }
/// assert!(!checkpoint.layer_tensors(0).is_empty());
/// assert_eq!(checkpoint.embedding().stored.shape[1], checkpoint.config.hidden_size as u64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    /// Where it is.
    pub location: Location,
    /// What the model is.
    pub config: ModelSpec,
    /// What was before its layers were parted, if they are.
    pub(super) whole: Option<Arc<Whole>>,
    /// Its tokenizer, chat template and defaults.
    pub texts: TextFiles,
    /// Defaults for generation.
    pub generation: GenerationConfig,
    /// Its files.
    pub files: Vec<CheckpointFile>,
    /// Its tensors, by file and offset.
    pub tensors: Arc<[Tensor]>,
    /// What is odd but does not matter, as sentences.
    pub warnings: Vec<String>,
    /// For each file: the handle its header was read from.
    pub(super) handles: Arc<[File]>,
    /// For each file: its map, once someone asked for one.
    pub(super) maps: Arc<[Mutex<Option<Arc<FileMap>>>]>,
    /// For each layer: its tensors in blob order, as indices into `tensors`.
    pub(super) layers: Vec<Vec<usize>>,
    pub(super) outer: OuterTensors,
    /// What its weights were ([`Checkpoint::becomes`]), once someone asked for it.
    pub(crate) codes: OnceLock<Former>,
    /// The weights of keys and values that heads of queries share, once someone asked for them.
    pub(crate) shared: OnceLock<BTreeSet<String>>,
    /// How much errors count, once someone said so, and the digest of that.
    pub(crate) importance: OnceLock<(Arc<Importance>, Digest)>,
    /// What its blobs may keep of what comes beside codes.
    pub(crate) beside: Arc<Room>,
}

/// A model whose layers are not parted.
#[derive(Debug)]
pub(super) struct Whole {
    config: ModelSpec,
    /// As [`Checkpoint::layers`].
    layers: Vec<Vec<usize>>,
}

/// Indices into [`Checkpoint::tensors`].
#[derive(Clone, Debug)]
pub(super) struct OuterTensors {
    pub(super) embedding: usize,
    pub(super) final_norm: usize,
    /// `None` when the embedding serves as head.
    pub(super) head: Option<usize>,
}

impl Checkpoint {
    /// The tensors of one layer in blob order; none for a layer the model does not have.
    pub fn layer_tensors(&self, layer: usize) -> Vec<&Tensor> {
        let indices = self.layers.get(layer).map(Vec::as_slice).unwrap_or_default();
        indices.iter().map(|&index| &self.tensors[index]).collect()
    }

    /// The weight of the embedding, `[vocab_size, hidden_size]`; its codes where it is packed.
    pub fn embedding(&self) -> &Tensor {
        &self.tensors[self.outer.embedding]
    }

    /// The norm after the last layer, `[hidden_size]`.
    pub fn final_norm(&self) -> &Tensor {
        &self.tensors[self.outer.final_norm]
    }

    /// The weight of the output head, as [`Checkpoint::embedding`]; `None` when the embedding serves as head, even
    /// if the file also stores one.
    pub fn head(&self) -> Option<&Tensor> {
        self.outer.head.map(|index| &self.tensors[index])
    }

    /// The tensors outside the layers that are neither embedding, nor head, nor the final norm's weight.
    pub fn other_ends(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(|tensor| tensor.role == Role::Outer)
    }

    /// The same checkpoint with its mixtures of experts in so many slices ([`ModelSpec::sliced`]): layers are then parts of
    /// layers, and what chooses experts and leads to them is in each slice. `None` where nothing is parted by that. Nothing is
    /// read again, and tensors, open files and maps are shared; how this one is parted is of no consequence.
    pub fn sliced(&self, slices: usize) -> Option<Checkpoint> {
        let config = self.whole().sliced(slices)?;
        let whole = self.whole.clone().unwrap_or_else(|| {
            Arc::new(Whole { config: self.config.clone(), layers: self.layers.clone() })
        });
        let mut layers = Vec::with_capacity(config.layers.len());
        for (layer, spec) in config.layers.iter().enumerate() {
            // Parts of a packed matrix go with its weight: a tensor that is named as a part is found by its module's path, any
            // other by its whole name.
            let (mut modules, mut leaves) = (HashSet::new(), HashSet::new());
            for tensor in spec.tensors() {
                if tensor.ending() != Part::Weight.ending() {
                    leaves.insert(tensor.leaf());
                }
                modules.insert(tensor.path);
            }
            let is_here = |index: &&usize| {
                let Role::Layer { leaf, .. } = &self.tensors[**index].role else { return false };
                Part::split(leaf).is_some_and(|(module, _)| modules.contains(module))
                    || leaves.contains(leaf)
            };
            let all = &whole.layers[config.number(layer)];
            layers.push(all.iter().filter(is_here).copied().collect());
        }
        Some(Checkpoint {
            location: self.location.clone(),
            config,
            whole: Some(whole),
            texts: self.texts.clone(),
            generation: self.generation.clone(),
            files: self.files.clone(),
            tensors: self.tensors.clone(),
            warnings: self.warnings.clone(),
            handles: self.handles.clone(),
            maps: self.maps.clone(),
            layers,
            outer: self.outer.clone(),
            codes: self.codes.clone(),
            shared: self.shared.clone(),
            importance: self.importance.clone(),
            beside: Room::of(MOST_BESIDE),
        })
    }

    /// What the model is, with its layers whole.
    pub fn whole(&self) -> &ModelSpec {
        self.whole.as_ref().map_or(&self.config, |whole| &whole.config)
    }

    /// Bytes of the tensors of one layer.
    pub fn layer_bytes(&self, layer: usize) -> u64 {
        self.layer_tensors(layer).iter().map(|tensor| tensor.bytes).sum()
    }

    /// Bytes of all tensors that inference uses.
    pub fn total_bytes(&self) -> u64 {
        let used = self.tensors.iter().filter(|tensor| tensor.role != Role::Ignored);
        used.map(|tensor| tensor.bytes).sum()
    }

    /// Tokens that end an answer: those of `generation_config.json`, else those of `config.json`,
    /// ascending. The tokenizer may know one more.
    pub fn stop_token_ids(&self) -> Vec<u32> {
        let mut ids = match self.generation.eos_token_ids.as_slice() {
            [] => self.config.eos_token_ids.clone(),
            given => given.to_vec(),
        };
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Fills `buffer` from the tensor's bytes, beginning `offset_in_tensor` into it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] beyond the tensor; [`Error::Io`] when the file cannot be read, also
    /// because it was cut since it was opened.
    pub fn read_at(
        &self,
        tensor: &Tensor,
        offset_in_tensor: u64,
        buffer: &mut [u8],
    ) -> Result<(), Error> {
        let end = offset_in_tensor.saturating_add(buffer.len() as u64);
        if end > tensor.bytes {
            let what = format!("tensor {:?}", tensor.name);
            return Err(Error::OutOfRange {
                what,
                offset: offset_in_tensor,
                end,
                bytes: tensor.bytes,
            });
        }
        let handle = &self.handles[tensor.file];
        let read = match tensor.lies {
            Lies::Apart(strides) => {
                strided::read(handle, tensor, strides, offset_in_tensor, buffer)
            }
            Lies::RowsApart(stride) => {
                rows_apart::read(handle, tensor, stride, offset_in_tensor, buffer)
            }
            Lies::Across(across) => across::read(handle, tensor, across, offset_in_tensor, buffer),
            Lies::InPairs { heads } => {
                paired::read(handle, tensor, heads, offset_in_tensor, buffer)
            }
            Lies::Said(bytes) => said(&bytes, offset_in_tensor, buffer),
            Lies::Together => read_exact_at(handle, buffer, tensor.offset + offset_in_tensor),
        };
        read.map_err(|cause| Error::io("read", &self.files[tensor.file].path, cause))
    }

    /// The tensor's bytes in place, through a map of its file that all its tensors share; in memory of their own where
    /// they do not follow each other in the file.
    ///
    /// Pages that are touched count as memory of this process: for what it computes with itself, not
    /// for what it sends.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped or read; [`Error::OutOfRange`] if it was cut since it was
    /// opened; [`Error::Memory`] if there is none.
    pub fn map(&self, tensor: &Tensor) -> Result<MappedTensor, Error> {
        if tensor.lies != Lies::Together {
            return self.gathered(tensor);
        }
        let path = &self.files[tensor.file].path;
        // A panic while the lock is held leaves either no map or a whole one.
        let mut slot = self.maps[tensor.file].lock().unwrap_or_else(PoisonError::into_inner);
        let map = match &*slot {
            Some(map) if !map.is_damaged() => map.clone(),
            // Or the file is whole again by now.
            _ => {
                let map = crate::mapped::map_file(&self.handles[tensor.file], path)?;
                slot.insert(map).clone()
            }
        };
        drop(slot);
        let (offset, end) = (tensor.offset, tensor.offset + tensor.bytes);
        let bytes = map.len() as u64;
        MappedTensor::from_map(map, offset as usize..end as usize, tensor.dtype, &tensor.shape)
            .map(|mapped| mapped.with_encoding(tensor.encoding))
            .ok_or_else(|| Error::OutOfRange {
                what: path.display().to_string(),
                offset,
                end,
                bytes,
            })
    }

    /// The tensor's bytes as everybody else knows them, in memory of their own.
    fn gathered(&self, tensor: &Tensor) -> Result<MappedTensor, Error> {
        let bytes = tensor.bytes as usize; // Of a file that was mapped, or could be.
        let refused = |cause| Error::memory(&tensor.name, bytes, cause);
        let mut memory = Memory::zeroed(bytes).map_err(refused)?;
        self.read_at(tensor, 0, &mut memory)?;
        let gathered = MappedTensor::from_memory(memory, tensor.dtype, tensor.shape.clone());
        Ok(gathered.map_err(refused)?.with_encoding(tensor.encoding))
    }

    /// A text that changes whenever a file of the checkpoint may have: the key under which what was
    /// computed from the weights is remembered.
    ///
    /// It covers device, inode, length, time of modification and header of every file, and how matrices are packed.
    ///
    /// # Errors
    /// [`Error::Io`] if a file's metadata cannot be read.
    pub fn identity(&self) -> Result<String, Error> {
        let mut hasher = Hasher::default();
        for (file, handle) in self.files.iter().zip(self.handles.iter()) {
            let metadata =
                handle.metadata().map_err(|cause| Error::io("read", &file.path, cause))?;
            hasher.update(&stamp(&metadata, file));
            hasher.update(&file.header_digest);
        }
        if let Some(quantization) = &self.config.quantization {
            // What the configuration says of packed matrices decides what is made of their bytes.
            hasher.update(format!("{quantization:?}").as_bytes());
        }
        if !self.config.numbers.is_empty() {
            // What is layer 3 depends on how layers are parted.
            let parts = self.layers.iter().map(|layer| layer.len().to_string());
            hasher.update(parts.collect::<Vec<_>>().join(" ").as_bytes());
        }
        Ok(hasher.finish().to_string())
    }

    /// As [`Checkpoint::identity`], for its layers in that encoding: another text for each encoding,
    /// for each encoder that gives other bytes, and for each [importance](Checkpoint::weigh) where that changes them.
    ///
    /// # Errors
    /// As [`Checkpoint::identity`].
    pub fn identity_encoded(&self, encoding: Scheme) -> Result<String, Error> {
        self.identity_encoded_each(&[encoding])
    }

    /// The same for layers of which each is in an encoding of its own: that of its number, or of the last.
    ///
    /// # Errors
    /// As [`Checkpoint::identity`].
    pub fn identity_encoded_each(&self, layers: &[Scheme]) -> Result<String, Error> {
        let identity = self.identity()?;
        if layers.iter().all(|scheme| *scheme == Scheme::AsStored) {
            return Ok(identity);
        }
        // What a scheme makes of weights depends on these.
        let schemes: Vec<String> = layers.iter().map(Scheme::to_string).collect();
        let mut text = format!("{identity} {} {ENCODER_VERSION}", schemes.join(" "));
        for scheme in Scheme::ALL.iter().filter(|scheme| layers.contains(scheme)) {
            text.push_str(&format!(" {scheme}={}", self.all_become(*scheme)));
        }
        let weighs = layers.iter().any(|scheme| self.weighs_errors(*scheme));
        if let Some((_, importance)) = self.importance.get().filter(|_| weighs) {
            text.push_str(&format!(" {importance} {WEIGHED_VERSION}"));
        }
        Ok(Digest::of(text.as_bytes()).to_string())
    }
}

/// Fills `buffer` from bytes that no file has.
fn said(bytes: &[u8], offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let from = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
    let found = from.and_then(|from| from.get(..buffer.len()));
    buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

#[cfg(unix)]
fn stamp(metadata: &std::fs::Metadata, _: &CheckpointFile) -> Vec<u8> {
    use std::os::unix::fs::MetadataExt;
    let numbers = [metadata.dev(), metadata.ino(), metadata.size()];
    let times = [metadata.mtime(), metadata.mtime_nsec()];
    let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
    numbers.chain(times.iter().flat_map(|time| time.to_le_bytes())).collect()
}

#[cfg(not(unix))]
fn stamp(metadata: &std::fs::Metadata, file: &CheckpointFile) -> Vec<u8> {
    format!("{:?} {} {:?}", file.path, metadata.len(), metadata.modified().ok()).into_bytes()
}
