//! A checkpoint and the scheme that it is to run in.
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cake_checkpoint::{
    BlobSource, BlobTensor, Checkpoint, Encoding, Error, FloatType, MappedMatrix, MappedTensor,
    MatrixTensors, Memory, Scheme, Tensor,
};
use cake_engine::{DeviceKind, MatrixKinds};

/// What is outside the layers, as the master computes with it.
#[derive(Debug)]
pub struct EndWeights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: MappedMatrix,
    /// The same; `None` when the embedding serves as head.
    pub head: Option<MappedMatrix>,
    /// `[hidden_size]`.
    pub norm: MappedTensor,
    /// What else is outside the layers, by name.
    pub others: HashMap<String, MappedTensor>,
}

impl EndWeights {
    /// The tensors that every token reads as a whole, those of the head, with a name for messages. An
    /// embedding that is not the head, too, is none of them: a token reads one row of it.
    pub fn read_whole(&mut self) -> Vec<(String, &mut MappedTensor)> {
        let head = self.head.as_mut().unwrap_or(&mut self.embedding);
        head.parts.iter_mut().map(|tensor| ("output head".to_owned(), tensor)).collect()
    }
}

/// What is planned, pushed and run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Model {
    /// The weights and what describes them.
    pub checkpoint: Arc<Checkpoint>,
    /// What they are turned into on their way; of layers, those that `layers` says nothing of.
    pub scheme: Scheme,
    /// What each layer is turned into, by the number of the whole layer, where they are not all alike.
    pub layers: Option<Arc<[Scheme]>>,
    /// What is known of each layer's blob, once somebody asked: a mixture's layer has hundreds of tensors.
    blobs: Arc<[OnceLock<BlobFacts>]>,
}

/// What is known of a layer's blob from the headers, and what [`Checkpoint::becomes`] finds.
#[derive(Clone, Debug, Default)]
struct BlobFacts {
    bytes: u64,
    active_bytes: u64,
    stored: Vec<(Option<Encoding>, u64)>,
    /// The bytes of its largest matrix's first part, and how it is stored.
    largest: Option<(u64, Encoding)>,
}

impl Model {
    /// A checkpoint whose layers are all turned into the same.
    pub fn new(checkpoint: Arc<Checkpoint>, scheme: Scheme) -> Model {
        Model::of(checkpoint, scheme, None)
    }

    /// The same model whose layers are turned into these each.
    pub fn with_layers(&self, layers: Vec<Scheme>) -> Model {
        Model::of(self.checkpoint.clone(), self.scheme, Some(layers.into()))
    }

    /// The same of a checkpoint whose layers are parted otherwise.
    pub fn with_checkpoint(&self, checkpoint: Arc<Checkpoint>) -> Model {
        Model::of(checkpoint, self.scheme, self.layers.clone())
    }

    fn of(checkpoint: Arc<Checkpoint>, scheme: Scheme, layers: Option<Arc<[Scheme]>>) -> Model {
        let blobs = checkpoint.config.layers.iter().map(|_| OnceLock::new()).collect();
        Model { checkpoint, scheme, layers, blobs }
    }

    /// Whether something is turned into anything.
    pub fn is_encoded(&self) -> bool {
        self.layers.is_some() || self.scheme != Scheme::AsStored
    }

    /// What a layer is turned into.
    pub fn scheme_of(&self, layer: usize) -> Scheme {
        let number = self.checkpoint.config.number(layer);
        let of_layer = self.layers.as_ref().and_then(|layers| layers.get(number));
        of_layer.copied().unwrap_or(self.scheme)
    }

    /// What weights are turned into, for people: `q4`, or `q8 in 3 layers, q4 in 13 layers` where layers differ.
    pub fn encoding(&self) -> String {
        let Some(layers) = &self.layers else { return self.scheme.to_string() };
        let count = |scheme: &Scheme| layers.iter().filter(|it| *it == scheme).count();
        let counts = Scheme::ALL.iter().map(|scheme| (scheme, count(scheme)));
        let words = counts.filter(|(_, count)| *count > 0).map(|(scheme, count)| {
            let layers = if count == 1 { "layer" } else { "layers" };
            format!("{scheme} in {count} {layers}")
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// The blob of one layer: what is pushed, stored and mapped.
    pub fn blob(&self, layer: usize) -> BlobSource<'_> {
        BlobSource::encoded(&self.checkpoint, layer, self.scheme_of(layer))
    }

    /// What is known of that blob; of a layer that the model does not have, nothing.
    fn facts(&self, layer: usize) -> &BlobFacts {
        static NONE: BlobFacts =
            BlobFacts { bytes: 0, active_bytes: 0, stored: Vec::new(), largest: None };
        let Some(known) = self.blobs.get(layer) else { return &NONE };
        known.get_or_init(|| {
            let blob = self.blob(layer);
            let matrices = blob.tensors().iter().filter_map(|it| Some((it.bytes, it.encoding?)));
            BlobFacts {
                bytes: blob.file_bytes(),
                active_bytes: self.active(&blob, layer),
                stored: stored(&blob),
                largest: matrices.max_by_key(|(bytes, _)| *bytes),
            }
        })
    }

    /// Bytes of that blob, header included: from the headers, and what [`Checkpoint::becomes`] finds.
    pub fn blob_bytes(&self, layer: usize) -> u64 {
        self.facts(layer).bytes
    }

    /// Bytes of one layer that a decoded token reads: all of its blob, but of experts the mean of as many as a row
    /// goes to.
    pub fn active_bytes(&self, layer: usize) -> u64 {
        self.facts(layer).active_bytes
    }

    fn active(&self, blob: &BlobSource<'_>, layer: usize) -> u64 {
        let config = &self.checkpoint.config;
        let Some(spec) = config.layers.get(layer) else { return blob.file_bytes() };
        let prefix = config.layer_tensor_name(layer, "");
        let mut modules: HashMap<&str, u64> = HashMap::new();
        for tensor in blob.tensors() {
            let module = tensor.name.strip_prefix(&prefix).and_then(|leaf| leaf.rsplit_once('.'));
            *modules.entry(module.map_or("", |(module, _)| module)).or_default() += tensor.bytes;
        }
        let stored = |module: &str| modules.get(module).copied().unwrap_or(0);
        let idle = modules.values().sum::<u64>().saturating_sub(spec.active_bytes(stored));
        blob.file_bytes().saturating_sub(idle)
    }

    /// What digests of its blobs are remembered under.
    ///
    /// # Errors
    /// If the checkpoint's files cannot be examined.
    pub fn identity(&self) -> Result<String, Error> {
        match &self.layers {
            None => self.checkpoint.identity_encoded(self.scheme),
            Some(layers) => self.checkpoint.identity_encoded_each(layers),
        }
    }

    /// The tensors of one layer as the master computes with them itself, by name: mapped where they
    /// stay as they are, else encoded into memory, in huge pages where the system gives them.
    ///
    /// # Errors
    /// If the checkpoint cannot be read or mapped, or a tensor cannot be encoded.
    pub fn mapped_layer(&self, layer: usize) -> Result<Vec<(String, MappedTensor)>, Error> {
        if self.scheme_of(layer) == Scheme::AsStored {
            let tensors = self.checkpoint.layer_tensors(layer).into_iter();
            let mapped = |tensor: &Tensor| Ok((tensor.name.clone(), self.checkpoint.map(tensor)?));
            return tensors.map(mapped).collect();
        }
        let blob = self.blob(layer);
        let mut end = blob.header_bytes();
        let mut read = |tensor: &BlobTensor<'_>| {
            let bytes = tensor.bytes as usize; // Fits: smaller than its source on disk.
            let refused = |cause| Error::memory(&tensor.name, bytes, cause);
            let mut memory = Memory::zeroed(bytes).map_err(refused)?;
            blob.read(end, &mut memory)?;
            end += tensor.bytes;
            let encoded = MappedTensor::from_memory(memory, tensor.dtype, tensor.shape.clone());
            let encoded = encoded.map_err(refused)?.with_encoding(tensor.encoding);
            Ok((tensor.name.clone(), encoded))
        };
        blob.tensors().iter().map(&mut read).collect()
    }

    /// Embedding, head, final norm and what else is outside the layers: mapped where they stay as they are, else encoded into memory, in
    /// huge pages where the system gives them.
    ///
    /// # Errors
    /// As [`Model::mapped_layer`].
    pub fn ends(&self) -> Result<EndWeights, Error> {
        let checkpoint = &self.checkpoint;
        let encoded = |matrix| checkpoint.encoded_matrix(&matrix, self.scheme);
        let other = |tensor: &Tensor| Ok((tensor.name.clone(), checkpoint.map(tensor)?));
        Ok(EndWeights {
            embedding: encoded(checkpoint.embedding_matrix())?,
            head: checkpoint.head_matrix().map(encoded).transpose()?,
            norm: checkpoint.map(checkpoint.final_norm())?,
            others: checkpoint.other_ends().map(other).collect::<Result<_, Error>>()?,
        })
    }

    /// Bytes of one layer's blob by the encoding of the matrices whose weights they are, the rest without one.
    pub fn stored(&self, layer: usize) -> &[(Option<Encoding>, u64)] {
        &self.facts(layer).stored
    }

    /// How the largest matrix of the first layer is stored, of all its parts if it is parted: what is timed on every
    /// device.
    pub fn weight_encoding(&self) -> Encoding {
        let config = &self.checkpoint.config;
        let parts = (0..config.layers.len()).take_while(|part| config.number(*part) == 0);
        let largest = parts.filter_map(|part| self.facts(part).largest);
        let largest = largest.max_by_key(|(bytes, _)| *bytes);
        largest.map_or(Encoding::Float(FloatType::F32), |(_, encoding)| encoding)
    }

    /// How the output head is stored where the master computes with it.
    pub fn head_encoding(&self) -> Encoding {
        let checkpoint = &self.checkpoint;
        let head = checkpoint.head_matrix().unwrap_or_else(|| checkpoint.embedding_matrix());
        head.encoded(checkpoint, self.scheme)
    }

    /// How the matrices of the layers are stored where they are computed with: each encoding once, as they come.
    pub fn encodings(&self) -> Vec<Encoding> {
        let mut encodings = Vec::new();
        for layer in 0..self.checkpoint.config.layers.len() {
            for encoding in self.stored(layer).iter().filter_map(|(encoding, _)| *encoding) {
                if !encodings.contains(&encoding) {
                    encodings.push(encoding);
                }
            }
        }
        encodings
    }

    /// The same, as far as processors treat encodings differently.
    pub fn matrix_kinds(&self) -> MatrixKinds {
        let mut kinds = MatrixKinds::default();
        self.encodings().into_iter().for_each(|encoding| kinds.add(encoding));
        kinds
    }

    /// Bytes of embedding, final norm, head and what else is outside the layers, as the master holds them, with what a device adds to
    /// those of the head.
    pub fn ends_bytes(&self) -> u64 {
        let checkpoint = &self.checkpoint;
        let bytes = |matrix: &MatrixTensors<'_>| matrix.encoded_bytes(checkpoint, self.scheme);
        let (embedding, head) = (checkpoint.embedding_matrix(), checkpoint.head_matrix());
        let product = bytes(head.as_ref().unwrap_or(&embedding));
        let permille = DeviceKind::default().resident_permille(self.head_encoding());
        let copy = (u128::from(product) * u128::from(permille.saturating_sub(1000))).div_ceil(1000);
        let stored = bytes(&embedding) + head.as_ref().map_or(0, bytes);
        let copy = u64::try_from(copy).unwrap_or(u64::MAX);
        let others = checkpoint.other_ends().chain([checkpoint.final_norm()]);
        let others = others.map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
        stored.saturating_add(others).saturating_add(copy)
    }
}

/// Bytes of a blob by the encoding of the matrices whose weights they are, the rest without one.
fn stored(blob: &BlobSource<'_>) -> Vec<(Option<Encoding>, u64)> {
    let mut stored: Vec<(Option<Encoding>, u64)> = vec![(None, blob.header_bytes())];
    for BlobTensor { encoding, bytes, .. } in blob.tensors() {
        match stored.iter_mut().find(|(known, _)| known == encoding) {
            Some((_, sum)) => *sum += bytes,
            None => stored.push((*encoding, *bytes)),
        }
    }
    stored
}
