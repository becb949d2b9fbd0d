//! What a model is: its ends, its layers and its rotations.

use serde::{Deserialize, Serialize};

use super::given::GivenSpec;
use super::kv::KvDtype;
use super::quantization::Quantization;
use super::rotation::{RopeScaling, RotationSpec};
use super::spec::{LayerSpec, Name, NormSpec, Op, TensorKind, TensorSpec, is_default};
use super::streams::{LayerStreamsSpec, StreamsSpec};
use crate::range::LayerRange;

/// One model: its ends, and what each of its layers is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// As in `architectures` of `config.json`.
    pub architecture: Name,
    /// Width of the activations between layers.
    pub hidden_size: usize,
    /// Rows of the embedding; at least the tokenizer's tokens.
    pub vocab_size: usize,
    /// Longest sequence the model is made for.
    pub max_position_embeddings: usize,
    /// Name of the weight of the embedding, `[vocab_size, hidden_size]`.
    pub embedding: Name,
    /// What the rows of the embedding are multiplied with.
    pub embedding_multiplier: f32,
    /// What precedes the number in the name of a layer's tensor.
    pub layer_prefix: Name,
    /// The decoder layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Their numbers in the names of tensors, where these are not their places: where layers are parted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub numbers: Vec<usize>,
    /// The norm after the last layer.
    pub final_norm: NormSpec,
    /// Name of the weight of the output head, `[vocab_size, hidden_size]`; absent from tied checkpoints.
    pub head: Name,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// What layers are given of a token beside hidden states, if anything.
    #[serde(default, skip_serializing_if = "is_default")]
    pub given: Option<GivenSpec>,
    /// The streams of hidden states between layers, where there are several.
    #[serde(default, skip_serializing_if = "is_default")]
    pub streams: Option<StreamsSpec>,
    /// What becomes of the head's products.
    #[serde(default, skip_serializing_if = "is_default")]
    pub logits: LogitsSpec,
    /// How names of tensors begin that are for something else than text. Not sent: nobody gets these.
    #[serde(skip)]
    pub other_prefixes: Vec<Name>,
    /// How names of tensors begin in files of another version of the reference or of MLX, where that may be. Not sent: a
    /// specification has the names of its files, once they are known.
    #[serde(skip)]
    pub other_names: Vec<Beginning>,
    /// How names of tensors begin, below a layer, that are for something else than what is computed. Not sent, either.
    #[serde(skip)]
    pub other_modules: Vec<Name>,
    /// The ways in which layers turn queries and keys.
    pub rotations: Vec<RotationSpec>,
    /// How matrices are packed; `None` when all are plain numbers. Not sent: what a worker holds says how it is stored.
    #[serde(skip)]
    pub quantization: Option<Quantization>,
    /// Token that starts a text, if any.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text, in the order given.
    pub eos_token_ids: Vec<u32>,
}

/// How names of tensors begin that are called otherwise in files of another version of the reference, or of MLX.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// As the specification has it.
    pub usual: Name,
    /// As those files have it.
    pub other: Name,
}

/// What becomes of the products of the output head: `softcap · tanh(multiplier · x / softcap)`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogitsSpec {
    /// What they are multiplied with.
    pub multiplier: f32,
    /// What bounds them then, if anything does.
    pub softcap: Option<f32>,
}

impl Default for LogitsSpec {
    fn default() -> Self {
        LogitsSpec { multiplier: 1.0, softcap: None }
    }
}

impl ModelSpec {
    /// Full names of the layers' tensors that belong to no module.
    pub fn parameters(&self) -> impl Iterator<Item = String> {
        self.layers.iter().enumerate().flat_map(move |(number, layer)| {
            let of_streams = layer.streams.iter().map(LayerStreamsSpec::scale);
            let parameters = layer.ops().flat_map(Op::parameters).chain(layer.scalar());
            let parameters = parameters.chain(of_streams);
            parameters.map(move |tensor| self.layer_tensor_name(number, &tensor.leaf()))
        })
    }

    /// Full names of the tensors that have a number of each expert, by which experts are chosen or weighed.
    pub(crate) fn choosing_tensors(&self) -> impl Iterator<Item = String> {
        self.layers.iter().enumerate().flat_map(move |(number, layer)| {
            let of_op = |op: &Op| match op {
                Op::Experts(it) => it.choosing_tensors(),
                _ => Vec::new(),
            };
            let tensors = layer.ops().flat_map(of_op);
            tensors.map(move |tensor| self.layer_tensor_name(number, &tensor.leaf()))
        })
    }

    /// Full name of a layer's tensor.
    pub fn layer_tensor_name(&self, layer: usize, leaf: &str) -> String {
        format!("{}{}.{leaf}", self.layer_prefix, self.number(layer))
    }

    /// The tensors outside the layers: name, kind and shape. The head is absent when it is tied.
    pub fn outer_tensors(&self) -> Vec<(String, TensorKind, Vec<u64>)> {
        let (vocab, hidden) = (self.vocab_size as u64, self.hidden_size as u64);
        let matrix = |name: &Name| (name.to_string(), TensorKind::Matrix, vec![vocab, hidden]);
        let named = |tensor: TensorSpec| (tensor.leaf(), tensor.kind, tensor.shape);
        let norm = named(self.final_norm.weight());
        let head = (!self.tie_word_embeddings).then(|| matrix(&self.head));
        let others = self.other_outer_tensors().map(named);
        [matrix(&self.embedding), norm].into_iter().chain(head).chain(others).collect()
    }

    /// Those of them that are neither embedding, nor head, nor the final norm's weight: their paths are whole names.
    pub(super) fn other_outer_tensors(&self) -> impl Iterator<Item = TensorSpec> {
        let (layers, hidden) = (self.layers.len(), self.hidden_size);
        let given = self.given.iter().flat_map(move |given| given.tensors(layers, hidden));
        let streams = self.streams.iter().flat_map(move |streams| streams.tensors(hidden));
        self.final_norm.bias().into_iter().chain(given).chain(streams)
    }

    /// Numbers that a row carries between layers before this one (or after the last one): hidden states, behind them sums of
    /// experts within a layer that is parted, and what this layer and those after it are given beside.
    pub fn row_width(&self, layer: usize) -> usize {
        let sums = if self.carries_sums(layer) { self.hidden_size } else { 0 };
        self.hidden_width() + sums + self.given_width() * self.layers.len().saturating_sub(layer)
    }

    /// Numbers of the widest row between layers.
    pub fn widest_row(&self) -> usize {
        (0..=self.layers.len()).map(|layer| self.row_width(layer)).max().unwrap_or(0)
    }

    /// Of these the hidden states, of all streams.
    pub fn hidden_width(&self) -> usize {
        self.hidden_size * self.stream_count()
    }

    /// Streams of hidden states between layers.
    pub fn stream_count(&self) -> usize {
        self.streams.as_ref().map_or(1, StreamsSpec::count)
    }

    /// Numbers that each layer is given of a row beside hidden states.
    pub fn given_width(&self) -> usize {
        self.given.as_ref().map_or(0, |given| given.width)
    }

    /// Whether a stage may begin with this layer: neither it nor one after it attends to keys of one before it.
    pub fn may_begin(&self, layer: usize) -> bool {
        let later = self.layers.iter().skip(layer);
        later.filter_map(LayerSpec::keys_of).all(|source| source >= layer)
    }

    /// The shortest stages that these layers may be parted into.
    pub fn pieces(&self, layers: LayerRange) -> Vec<LayerRange> {
        let mut begins: Vec<usize> = layers
            .iter()
            .filter(|layer| *layer == layers.start || self.may_begin(*layer))
            .collect();
        begins.push(layers.end);
        begins.windows(2).map(|pair| LayerRange::new(pair[0], pair[1])).collect()
    }

    /// The longest context of which the rotations are those of short sequences; `None` if all contexts have the same.
    pub fn short_context(&self) -> Option<usize> {
        let of_rotation = |rotation: &RotationSpec| match rotation.rope.scaling {
            RopeScaling::LongRope { original_max_position, .. } => {
                Some(original_max_position as usize)
            }
            _ => None,
        };
        let shortest = self.rotations.iter().filter_map(of_rotation).min();
        shortest.filter(|shortest| (1..self.max_position_embeddings).contains(shortest))
    }

    /// Bytes of keys and values of one position in all layers.
    pub fn kv_bytes_per_token(&self, kv: KvDtype) -> u64 {
        self.layers.iter().map(|layer| layer.kept().bytes(kv)).sum()
    }
}
