//! What a model is, said once: [`ModelSpec`], read from `config.json` by the family that it names (`family/`).
//!
//! Catalog, loader, probe, memory formulae and the planner's costs derive from it. Whatever is not supported is refused
//! here, naming the field: nothing is loaded as something else.

mod check;
mod family;
mod fields;
mod harmless;
mod names;
mod quantization;
mod rope;
mod spec;
#[cfg(test)]
mod tests;
mod window;
mod wire;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::encoding::Part;
pub use check::{Fault, SpecError};
pub use family::{FAMILIES, Family};
use fields::Fields;
pub(crate) use names::Names;
pub use names::Role;
pub use quantization::Quantization;
pub use rope::{Rope, RopeScaling};
pub use spec::{
    Activation, AttentionSpec, Branch, ExpertsSpec, Joined, Kept, LayerSpec, LinearSpec, MlpSpec,
    Name, NormSpec, Op, RotationSpec, RouterChoice, RouterSpec, TensorKind, TensorSpec,
};
pub use wire::MAX_SPEC_BYTES;

/// Longest configuration accepted; the longest in use, with one entry per quantized module, are
/// below 1 MiB.
pub const MAX_CONFIG_BYTES: usize = 4 << 20;

/// Largest value accepted of each size: well above any model, well below what would overflow.
mod limit {
    pub(super) const LAYERS: usize = 4096;
    pub(super) const HIDDEN: usize = 1 << 18;
    pub(super) const HEADS: usize = 1 << 14;
    pub(super) const HEAD_DIM: usize = 1 << 14;
    pub(super) const INNER: usize = 1 << 22;
    /// Of all layers together: each has tensors of its own, and Kimi K2 has some 23,000.
    pub(super) const EXPERTS: usize = 1 << 16;
    /// Of one layer: no model has a thousand.
    pub(super) const EXPERTS_OF_LAYER: usize = 1 << 12;
    pub(super) const BRANCHES: usize = 16;
    pub(super) const ROTATIONS: usize = 16;
    pub(super) const END_TOKENS: usize = 64;
    /// Bytes; the longest in use has some thirty.
    pub(super) const NAME: usize = 128;
    /// Base of the frequencies of a rotation.
    pub(super) const THETA: f64 = 1e15;
    /// What anything else is multiplied with or divided by.
    pub(super) const FACTOR: f64 = 1e9;
    pub(super) const VOCAB: usize = 1 << 24;
    pub(super) const POSITIONS: usize = 1 << 28;
}

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
    /// The norm after the last layer.
    pub final_norm: NormSpec,
    /// Name of the weight of the output head, `[vocab_size, hidden_size]`; absent from tied checkpoints.
    pub head: Name,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
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

/// Why a configuration is refused. Each sentence names the field.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum ConfigError {
    #[error("configuration of {bytes} bytes is longer than {MAX_CONFIG_BYTES}")]
    TooLarge { bytes: usize },
    #[error("configuration is not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("configuration is {found}, expected an object")]
    NotAnObject { found: &'static str },
    #[error("{field} is missing")]
    Missing { field: String },
    #[error("{field} is {found}, expected {expected}")]
    WrongType { field: String, expected: &'static str, found: String },
    #[error("{field} is {found}, expected {least} to {most}")]
    OutOfRange { field: String, found: String, least: String, most: String },
    #[error("neither architectures nor model_type is given")]
    NoArchitecture,
    #[error("{field} {found:?} is not supported; supported are {}", supported())]
    UnsupportedArchitecture { field: &'static str, found: String },
    #[error("architectures says {architecture:?} but model_type says {model_type:?}")]
    ConflictingArchitecture { architecture: String, model_type: String },
    #[error("num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")]
    HeadsNotDivisible { heads: usize, kv_heads: usize },
    #[error(
        "hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}, and head_dim is not given"
    )]
    HiddenNotDivisible { hidden_size: usize, heads: usize },
    #[error(
        "the rotating part of a head is {rotary_dim} (head_dim {head_dim} × partial_rotary_factor {factor}); it must be even, positive and at most head_dim"
    )]
    RotaryDim { rotary_dim: usize, head_dim: usize, factor: f64 },
    #[error(
        "rope type {rope_type:?} in {field} is not supported; supported are default, linear and llama3"
    )]
    UnsupportedRope { field: &'static str, rope_type: String },
    #[error("layer_types has {found} entries, num_hidden_layers is {expected}")]
    LayerTypesLength { expected: usize, found: usize },
    #[error("layer_types[{layer}] {found:?} is not supported for {architecture}")]
    UnsupportedLayerType { layer: usize, found: String, architecture: &'static str },
    #[error("layer {layer} is to see a window (sliding_attention), but there is none: {reason}")]
    NoWindow { layer: usize, reason: &'static str },
    #[error(
        "{field} {found} is not supported; quantized weights must be MLX's affine ones with 4 or 8 bits in groups of 32, 64 or 128"
    )]
    UnsupportedQuantization { field: String, found: String },
    #[error("{field} {found} is not supported for {architecture}")]
    Unsupported { field: String, found: String, architecture: &'static str },
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl ConfigError {
    /// The same of a field inside the object `outer`.
    fn inside(self, outer: &str) -> Self {
        match self {
            Self::Unsupported { field, found, architecture } => {
                Self::Unsupported { field: format!("{outer}.{field}"), found, architecture }
            }
            other => other,
        }
    }
}

fn supported() -> String {
    FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", ")
}

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5.
    ///
    /// The bytes may come from a peer: no input panics, and every size is bounded.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field, for what is malformed and for what is not supported.
    pub fn parse(config_json: &[u8]) -> Result<ModelSpec, ConfigError> {
        if config_json.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { bytes: config_json.len() });
        }
        let value = serde_json::from_slice(config_json).map_err(ConfigError::Json)?;
        let fields = Fields::new(&value)?;
        let family = family::of(&fields)?;
        let mut spec = (family.read)(&fields)?;
        spec.quantization = quantization::read(&fields)?;
        spec.bos_token_id = fields.token_ids("bos_token_id")?.first().copied();
        spec.eos_token_ids = fields.token_ids("eos_token_id")?;
        fields.refuse_others(family.architecture)?;
        spec.check()?; // What is read here is what workers take.
        Ok(spec)
    }

    /// Full name of a layer's tensor.
    pub fn layer_tensor_name(&self, layer: usize, leaf: &str) -> String {
        format!("{}{layer}.{leaf}", self.layer_prefix)
    }

    /// The tensors outside the layers: name, kind and shape. The head is absent when it is tied.
    pub fn outer_tensors(&self) -> Vec<(String, TensorKind, Vec<u64>)> {
        let (vocab, hidden) = (self.vocab_size as u64, self.hidden_size as u64);
        let matrix = |name: &Name| (name.to_string(), TensorKind::Matrix, vec![vocab, hidden]);
        let norm = format!("{}{}", self.final_norm.path, Part::Weight.ending());
        let norm = (norm, TensorKind::Vector, vec![self.final_norm.width as u64]);
        let head = (!self.tie_word_embeddings).then(|| matrix(&self.head));
        [matrix(&self.embedding), norm].into_iter().chain(head).collect()
    }

    /// Bytes of keys and values of one position in all layers.
    pub fn kv_bytes_per_token(&self, kv: KvDtype) -> u64 {
        self.layers.iter().map(|layer| layer.kept().bytes(kv)).sum()
    }
}

/// Element type of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KvDtype {
    /// 4 bytes; exact.
    #[default]
    F32,
    /// 2 bytes; rounded.
    F16,
}

/// Why a text is not an element type of the KV cache.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a KV cache type; write f32 or f16")]
pub struct KvDtypeError {
    /// What was given.
    pub text: String,
}

impl KvDtype {
    /// Bytes of one number.
    pub const fn bytes(self) -> u64 {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
        }
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
        })
    }
}

impl FromStr for KvDtype {
    type Err = KvDtypeError;

    fn from_str(text: &str) -> Result<Self, KvDtypeError> {
        match text {
            "f32" => Ok(KvDtype::F32),
            "f16" => Ok(KvDtype::F16),
            _ => Err(KvDtypeError { text: text.to_owned() }),
        }
    }
}
