//! `config.json` of a checkpoint, read, checked and reduced to what the decoder needs.
//!
//! Whatever is not supported is refused here, naming the field: nothing is loaded as something else.

mod fields;
mod quantization;
mod rope;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;
use std::str::FromStr;

use crate::family::{Bias, FAMILIES, Family};
use fields::Fields;
pub use quantization::{ModuleFormat, Quantization};
pub use rope::{Rope, RopeScaling};

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
    pub(super) const VOCAB: usize = 1 << 24;
    pub(super) const POSITIONS: usize = 1 << 28;
}

/// Shape and constants of one model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// The row of the family table.
    pub family: &'static Family,
    /// Width of the activations between layers.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head; `num_heads × head_dim` need not be `hidden_size`.
    pub head_dim: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding; at least the tokenizer's tokens.
    pub vocab_size: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: Rope,
    /// How many numbers of a head rotate, from its first; even.
    pub rotary_dim: usize,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// For each layer, how many positions (its own included) it sees; `None` for all.
    pub sliding_window: Vec<Option<usize>>,
    /// Whether query, key and value projections have biases.
    pub attention_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// How matrices are packed; `None` when all are plain numbers.
    pub quantization: Option<Quantization>,
    /// Longest sequence the model is made for.
    pub max_position_embeddings: usize,
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
    #[error("layer_types[{layer}] is sliding_attention, but there is no window: {reason}")]
    NoWindow { layer: usize, reason: &'static str },
    #[error(
        "{field} {found} is not supported; quantized weights must be MLX's affine ones with 4 or 8 bits in groups of 32, 64 or 128"
    )]
    UnsupportedQuantization { field: String, found: String },
    #[error("{field} {found} is not supported for {architecture}")]
    Unsupported { field: &'static str, found: String, architecture: &'static str },
}

fn supported() -> String {
    FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", ")
}

/// Keys that change the arithmetic in ways no family here knows; they must be absent, null, false,
/// or the number that makes them do nothing.
const UNKNOWN_ARITHMETIC: &[(&str, f64)] = &[
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("clip_qkv", 0.0),
    ("num_experts", 0.0),
    ("num_local_experts", 0.0),
    ("n_routed_experts", 0.0),
    ("kv_lora_rank", 0.0),
    ("attention_multiplier", 1.0),
    ("embedding_multiplier", 1.0),
    ("residual_multiplier", 1.0),
    ("logits_scaling", 1.0),
    ("logit_scale", 1.0),
    ("attention_sink_size", 0.0),
];

impl ModelConfig {
    /// Reads a `config.json` as written by transformers 4 or 5.
    ///
    /// The bytes may come from a peer: no input panics, and every size is bounded.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field, for what is malformed and for what is not supported.
    pub fn parse(config_json: &[u8]) -> Result<ModelConfig, ConfigError> {
        if config_json.len() > MAX_CONFIG_BYTES {
            return Err(ConfigError::TooLarge { bytes: config_json.len() });
        }
        let value = serde_json::from_slice(config_json).map_err(ConfigError::Json)?;
        let fields = Fields::new(&value)?;
        let family = family_of(&fields)?;
        refuse_unsupported(&fields, family)?;

        let num_layers = fields.size("num_hidden_layers", limit::LAYERS)?;
        let hidden_size = fields.size("hidden_size", limit::HIDDEN)?;
        let num_heads = fields.size("num_attention_heads", limit::HEADS)?;
        let num_kv_heads =
            fields.optional_size("num_key_value_heads", limit::HEADS)?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let (heads, kv_heads) = (num_heads, num_kv_heads);
            return Err(ConfigError::HeadsNotDivisible { heads, kv_heads });
        }
        let head_dim = match fields.optional_size("head_dim", limit::HEAD_DIM)? {
            Some(given) => given,
            None if hidden_size % num_heads == 0 => hidden_size / num_heads,
            None => {
                return Err(ConfigError::HiddenNotDivisible { hidden_size, heads: num_heads });
            }
        };
        let max_position_embeddings = fields.size("max_position_embeddings", limit::POSITIONS)?;
        let (rope, rotary_dim) = rope::read(&fields, family, head_dim, max_position_embeddings)?;
        let config_bias = fields.flag("attention_bias")?;
        Ok(ModelConfig {
            family,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate_size: fields.size("intermediate_size", limit::INNER)?,
            vocab_size: fields.size("vocab_size", limit::VOCAB)?,
            rms_norm_eps: fields.number("rms_norm_eps", 0.0, 1.0)?,
            rope,
            rotary_dim,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(family.tie_default),
            sliding_window: window::read(&fields, family, num_layers)?,
            attention_bias: bias(&fields, family, "attention_bias", family.qkv_bias, config_bias)?,
            output_bias: match family.output_bias {
                Bias::FromConfig => config_bias.unwrap_or(false),
                Bias::Present => true,
                Bias::Absent => false, // attention_bias was judged with the other three.
            },
            mlp_bias: bias(&fields, family, "mlp_bias", family.mlp_bias, fields.flag("mlp_bias")?)?,
            quantization: quantization::read(&fields)?,
            max_position_embeddings,
            bos_token_id: fields.token_ids("bos_token_id")?.first().copied(),
            eos_token_ids: fields.token_ids("eos_token_id")?,
        })
    }

    /// Bytes of keys and values of one position in one layer.
    pub fn kv_bytes_per_token_layer(&self, kv: KvDtype) -> u64 {
        2 * self.kv_dim() as u64 * kv.bytes()
    }

    /// Width of the queries of one position: `num_heads × head_dim`.
    pub fn q_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of the keys (and of the values) of one position: `num_kv_heads × head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}

/// The family that `architectures` and `model_type` name; where both are given they must agree.
fn family_of(fields: &Fields<'_>) -> Result<&'static Family, ConfigError> {
    let model_type = fields.text("model_type")?;
    let by_type = |name: &str| FAMILIES.iter().find(|family| family.model_type == name);
    match (fields.first_text("architectures")?, model_type) {
        (None, None) => Err(ConfigError::NoArchitecture),
        (None, Some(name)) => by_type(name).ok_or_else(|| ConfigError::UnsupportedArchitecture {
            field: "model_type",
            found: name.to_owned(),
        }),
        (Some(architecture), model_type) => {
            let family = FAMILIES
                .iter()
                .find(|family| family.architecture == architecture)
                .ok_or_else(|| ConfigError::UnsupportedArchitecture {
                    field: "architectures",
                    found: architecture.to_owned(),
                })?;
            match model_type {
                Some(name) if name != family.model_type => {
                    Err(ConfigError::ConflictingArchitecture {
                        architecture: architecture.to_owned(),
                        model_type: name.to_owned(),
                    })
                }
                _ => Ok(family),
            }
        }
    }
}

/// Refuses what would change the arithmetic or the meaning of the weights.
fn refuse_unsupported(fields: &Fields<'_>, family: &Family) -> Result<(), ConfigError> {
    let architecture = family.architecture;
    for field in ["hidden_act", "hidden_activation"] {
        match fields.text(field)? {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                let found = format!("{other:?}");
                return Err(ConfigError::Unsupported { field, found, architecture });
            }
        }
    }
    for &(field, neutral) in UNKNOWN_ARITHMETIC {
        let harmless = |value: &serde_json::Value| {
            value.as_bool() == Some(false) || value.as_f64() == Some(neutral)
        };
        if let Some(value) = fields.get(field).filter(|value| !harmless(value)) {
            let found = fields::shown(value);
            return Err(ConfigError::Unsupported { field, found, architecture });
        }
    }
    Ok(())
}

/// Whether a bias is there; a family without one refuses a configuration that asks for it.
fn bias(
    fields: &Fields<'_>,
    family: &Family,
    field: &'static str,
    rule: Bias,
    given: Option<bool>,
) -> Result<bool, ConfigError> {
    match (rule, given) {
        (Bias::Present, _) => Ok(true),
        (Bias::FromConfig, given) => Ok(given.unwrap_or(false)),
        (Bias::Absent, Some(true)) => {
            let found = fields.get(field).map(fields::shown).unwrap_or_default();
            Err(ConfigError::Unsupported { field, found, architecture: family.architecture })
        }
        (Bias::Absent, _) => Ok(false),
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
