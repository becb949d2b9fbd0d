//! The table of model families: what differs between them, as data, and what their tensors are.
//!
//! A new family is one row here (and a golden directory). Rows say only what differs from
//! [`LLAMA`].

use crate::catalog::CatalogError;
use crate::config::ModelConfig;

/// One architecture this project runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Family {
    /// As in `architectures` of `config.json`.
    pub architecture: &'static str,
    /// As in `model_type` of `config.json`.
    pub model_type: &'static str,
    /// What precedes the number in the name of a layer's tensor.
    pub layer_prefix: &'static str,
    /// Name of the weight of the embedding, `[vocab_size, hidden_size]`.
    pub embedding: &'static str,
    /// Name of the norm after the last layer, `[hidden_size]`.
    pub final_norm: &'static str,
    /// Name of the weight of the output head, `[vocab_size, hidden_size]`; absent from tied checkpoints.
    pub head: &'static str,
    /// Biases of the query, key and value projections.
    pub qkv_bias: Bias,
    /// Bias of the attention's output projection.
    pub output_bias: Bias,
    /// Biases of the three projections of the MLP.
    pub mlp_bias: Bias,
    /// Norms of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// How the projections are stored.
    pub projections: Projections,
    /// How much of a head rotates.
    pub rotary: Rotary,
    /// Whether the head is the embedding when the configuration does not say.
    pub tie_default: bool,
    /// Which layers see only a window of the past.
    pub window: WindowRule,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bias {
    /// Never.
    Absent,
    /// Always; there is no key for it.
    Present,
    /// As `attention_bias` (or `mlp_bias`) says, absent meaning no.
    FromConfig,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QkNorm {
    /// None.
    None,
    /// An RMS norm of `[head_dim]` over every head, before rotation.
    PerHead,
}

/// How a layer's projections are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Projections {
    /// One matrix each.
    Separate,
    /// `qkv_proj` with rows of query, then key, then value; `gate_up_proj` with rows of gate, then up.
    Fused,
}

/// How much of a head rotates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rotary {
    /// All of it.
    Full,
    /// The first `head_dim × partial_rotary_factor` numbers of it.
    Partial,
}

/// Which layers see only a window of the past, when the configuration gives no `layer_types`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowRule {
    /// None; the reference ignores `sliding_window` here.
    Never,
    /// All, if `sliding_window` is a number.
    All {
        /// The window when the key is absent (which is not the same as null).
        default: Option<usize>,
    },
    /// If `use_sliding_window`, those from `max_window_layers` on.
    FromLayer {
        /// The window when the key is absent.
        default_window: usize,
        /// `max_window_layers` when the key is absent.
        default_first: usize,
    },
}

/// Llama 2, 3, 3.1, 3.2 and what is shaped like them.
pub const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    layer_prefix: "model.layers.",
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    qkv_bias: Bias::FromConfig,
    output_bias: Bias::FromConfig,
    mlp_bias: Bias::FromConfig,
    qk_norm: QkNorm::None,
    projections: Projections::Separate,
    rotary: Rotary::Full,
    tie_default: false,
    window: WindowRule::Never,
};

/// Mistral: a window on every layer in early versions. The class default of the window is 4096.
pub const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    qkv_bias: Bias::Absent,
    output_bias: Bias::Absent,
    mlp_bias: Bias::Absent,
    window: WindowRule::All { default: Some(4096) },
    ..LLAMA
};

/// Qwen2 and Qwen2.5: query, key and value always have biases.
pub const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    qkv_bias: Bias::Present,
    output_bias: Bias::Absent,
    mlp_bias: Bias::Absent,
    window: WindowRule::FromLayer { default_window: 4096, default_first: 28 },
    ..LLAMA
};

/// Qwen3, dense: norms of queries and keys per head.
pub const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    mlp_bias: Bias::Absent,
    qk_norm: QkNorm::PerHead,
    window: WindowRule::FromLayer { default_window: 4096, default_first: 28 },
    ..LLAMA
};

/// Phi-3 and Phi-4: fused projections.
pub const PHI3: Family = Family {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    qkv_bias: Bias::Absent,
    output_bias: Bias::Absent,
    mlp_bias: Bias::Absent,
    projections: Projections::Fused,
    rotary: Rotary::Partial,
    window: WindowRule::All { default: None },
    ..LLAMA
};

/// Every family this project runs.
pub const FAMILIES: &[Family] = &[LLAMA, MISTRAL, QWEN2, QWEN3, PHI3];

/// What a tensor is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The embedding matrix.
    Embedding(Part),
    /// Part of one decoder layer.
    Layer {
        /// The layer's number.
        layer: usize,
        /// The rest of the name, such as `self_attn.q_proj.weight`.
        leaf: String,
    },
    /// The norm after the last layer.
    FinalNorm,
    /// The output head.
    Head(Part),
    /// Nothing that inference needs: buffers of old files, prediction layers past the last one.
    Ignored,
}

/// One of the tensors that a matrix is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Its numbers, or the codes of a packed matrix.
    Weight,
    /// The scales of a packed matrix.
    Scales,
    /// What a packed matrix adds to the products of scales and codes; not a layer's `bias`.
    Biases,
}

impl Part {
    /// What its name ends in, after the path of its module.
    pub const fn ending(self) -> &'static str {
        match self {
            Part::Weight => ".weight",
            Part::Scales => ".scales",
            Part::Biases => ".biases",
        }
    }

    /// The part that is called `name` in the module whose weight is called `weight`.
    fn of(name: &str, weight: &str) -> Option<Part> {
        let ending = name.strip_prefix(weight.strip_suffix(Part::Weight.ending())?)?;
        [Part::Weight, Part::Scales, Part::Biases].into_iter().find(|part| part.ending() == ending)
    }
}

/// End of the names of a layer's matrices; its norms end otherwise.
const MATRIX_END: &str = "_proj.weight";
/// Ends of names that old files carry and inference computes itself.
const IGNORED_ENDS: &[&str] =
    &[".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"];
/// Start of the names of multi-token prediction modules stored outside the layers.
const PREDICTION_PREFIX: &str = "mtp.";

impl Family {
    /// What the tensor called `name` is for, in a model of `num_layers` layers.
    ///
    /// The layer number is parsed: `model.layers.1.` is not `model.layers.10.`, and a number with a
    /// leading zero is not a number. Layers from `num_layers` on predict further tokens and are
    /// ignored.
    ///
    /// # Errors
    /// [`CatalogError::UnknownTensor`] for a name this family has no place for.
    pub fn classify(&self, name: &str, num_layers: usize) -> Result<Role, CatalogError> {
        let unknown = || CatalogError::UnknownTensor {
            tensor: name.to_owned(),
            architecture: self.architecture,
        };
        if let Some(part) = Part::of(name, self.embedding) {
            return Ok(Role::Embedding(part));
        }
        if name == self.final_norm {
            return Ok(Role::FinalNorm);
        }
        if let Some(part) = Part::of(name, self.head) {
            return Ok(Role::Head(part));
        }
        if name.starts_with(PREDICTION_PREFIX) {
            return Ok(Role::Ignored);
        }
        if IGNORED_ENDS.iter().any(|end| name.ends_with(end)) {
            return Ok(Role::Ignored);
        }
        let (number, leaf) = name
            .strip_prefix(self.layer_prefix)
            .and_then(|rest| rest.split_once('.'))
            .ok_or_else(unknown)?;
        let decimal = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        if !decimal || (number.len() > 1 && number.starts_with('0')) {
            return Err(unknown());
        }
        match number.parse::<usize>() {
            Ok(layer) if layer < num_layers => {
                let known = |known: &&str| {
                    *known == leaf || known.ends_with(MATRIX_END) && Part::of(leaf, known).is_some()
                };
                if !self.leaves().iter().any(known) {
                    return Err(unknown());
                }
                Ok(Role::Layer { layer, leaf: leaf.to_owned() })
            }
            _ => Ok(Role::Ignored),
        }
    }

    /// The exact tensors of one layer: what follows `model.layers.N.`, and the shape.
    pub fn layer_tensors(&self, config: &ModelConfig) -> Vec<(String, Vec<u64>)> {
        let hidden = config.hidden_size as u64;
        let inner = config.intermediate_size as u64;
        let (q, kv) = (config.q_dim() as u64, config.kv_dim() as u64);
        let head = config.head_dim as u64;
        let mut tensors = Vec::new();
        let mut add = |leaf: &str, shape: &[u64]| tensors.push((leaf.to_owned(), shape.to_vec()));
        add("input_layernorm.weight", &[hidden]);
        let mut linear = |path: &str, rows: u64, columns: u64, bias: bool| {
            add(&format!("{path}.weight"), &[rows, columns]);
            if bias {
                add(&format!("{path}.bias"), &[rows]);
            }
        };
        let (qkv_bias, mlp_bias) = (config.attention_bias, config.mlp_bias);
        match self.projections {
            Projections::Separate => {
                linear("self_attn.q_proj", q, hidden, qkv_bias);
                linear("self_attn.k_proj", kv, hidden, qkv_bias);
                linear("self_attn.v_proj", kv, hidden, qkv_bias);
            }
            Projections::Fused => linear("self_attn.qkv_proj", q + 2 * kv, hidden, qkv_bias),
        }
        linear("self_attn.o_proj", hidden, q, config.output_bias);
        match self.projections {
            Projections::Separate => {
                linear("mlp.gate_proj", inner, hidden, mlp_bias);
                linear("mlp.up_proj", inner, hidden, mlp_bias);
            }
            Projections::Fused => linear("mlp.gate_up_proj", 2 * inner, hidden, mlp_bias),
        }
        linear("mlp.down_proj", hidden, inner, mlp_bias);
        if self.qk_norm == QkNorm::PerHead {
            add("self_attn.q_norm.weight", &[head]);
            add("self_attn.k_norm.weight", &[head]);
        }
        add("post_attention_layernorm.weight", &[hidden]);
        tensors
    }

    /// The tensors outside the layers: name and shape. The head is absent when it is tied.
    pub fn outer_tensors(&self, config: &ModelConfig) -> Vec<(&'static str, Vec<u64>)> {
        let (vocab, hidden) = (config.vocab_size as u64, config.hidden_size as u64);
        let mut tensors =
            vec![(self.embedding, vec![vocab, hidden]), (self.final_norm, vec![hidden])];
        if !config.tie_word_embeddings {
            tensors.push((self.head, vec![vocab, hidden]));
        }
        tensors
    }

    /// Full name of a layer's tensor.
    pub fn layer_tensor_name(&self, layer: usize, leaf: &str) -> String {
        format!("{}{layer}.{leaf}", self.layer_prefix)
    }

    /// Every leaf some configuration of this family can have.
    fn leaves(&self) -> Vec<&'static str> {
        let mut leaves = vec![
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "self_attn.o_proj.weight",
            "mlp.down_proj.weight",
        ];
        let (qkv, qkv_bias, gate_up, mlp_bias): (&[_], &[_], &[_], &[_]) = match self.projections {
            Projections::Separate => (
                &["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
                &["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
                &["mlp.gate_proj.weight", "mlp.up_proj.weight"],
                &["mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"],
            ),
            Projections::Fused => (
                &["self_attn.qkv_proj.weight"],
                &["self_attn.qkv_proj.bias"],
                &["mlp.gate_up_proj.weight"],
                &["mlp.gate_up_proj.bias", "mlp.down_proj.bias"],
            ),
        };
        leaves.extend_from_slice(qkv);
        leaves.extend_from_slice(gate_up);
        if self.qkv_bias != Bias::Absent {
            leaves.extend_from_slice(qkv_bias);
        }
        if self.output_bias != Bias::Absent {
            leaves.push("self_attn.o_proj.bias");
        }
        if self.mlp_bias != Bias::Absent {
            leaves.extend_from_slice(mlp_bias);
        }
        if self.qk_norm == QkNorm::PerHead {
            leaves.extend_from_slice(&["self_attn.q_norm.weight", "self_attn.k_norm.weight"]);
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: usize, leaf: &str) -> Role {
        Role::Layer { layer, leaf: leaf.into() }
    }

    #[test]
    fn parses_the_layer_number_and_never_compares_prefixes() {
        let leaf = "mlp.up_proj.weight";
        for number in [0, 1, 10, 11, 100, 119] {
            let name = format!("model.layers.{number}.{leaf}");
            assert_eq!(LLAMA.classify(&name, 120).unwrap(), layer(number, leaf));
        }
    }

    #[test]
    fn rejects_numbers_that_are_not_plain() {
        for number in ["01", "+1", "-1", "1e1", "", "0x1", "１"] {
            let name = format!("model.layers.{number}.mlp.up_proj.weight");
            let error = LLAMA.classify(&name, 120).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn ignores_prediction_layers_and_buffers() {
        for name in [
            "model.layers.4.eh_proj.weight",
            "model.layers.5.shared_head.head.weight",
            "model.layers.99999999999999999999999.x",
            "mtp.fc.weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.rotary_emb.inv_freq",
            "model.layers.0.attention.masked_bias",
            "model.layers.0.attention.bias",
        ] {
            assert_eq!(LLAMA.classify(name, 4).unwrap(), Role::Ignored, "{name}");
        }
    }

    #[test]
    fn an_unknown_weight_is_an_unknown_model() {
        for name in [
            "model.layers.0.self_attn.sinks",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.input_layernorm.scales",
            "model.layers.0.mlp.up_proj.scale",
            "model.layers.0.mlp.up_proj",
            "model.embed_tokens.bias",
            "vision_tower.encoder.layers.0.mlp.up_proj.weight",
            "language_model.model.layers.0.mlp.up_proj.weight",
            "model.layers.0",
            "model.layers.",
            "",
        ] {
            assert!(
                matches!(LLAMA.classify(name, 4), Err(CatalogError::UnknownTensor { .. })),
                "{name}"
            );
        }
        assert!(MISTRAL.classify("model.layers.0.self_attn.q_proj.bias", 4).is_err());
        assert!(QWEN3.classify("model.layers.0.self_attn.q_norm.weight", 4).is_ok());
        assert!(PHI3.classify("model.layers.0.self_attn.q_proj.weight", 4).is_err());
    }

    #[test]
    fn a_matrix_may_have_scales_and_biases() {
        for leaf in ["mlp.up_proj.scales", "mlp.up_proj.biases", "self_attn.q_proj.biases"] {
            let name = format!("model.layers.3.{leaf}");
            assert_eq!(MISTRAL.classify(&name, 4).unwrap(), layer(3, leaf));
        }
        let outer = |name: &str| MISTRAL.classify(name, 4).unwrap();
        assert_eq!(outer("model.embed_tokens.scales"), Role::Embedding(Part::Scales));
        assert_eq!(outer("model.embed_tokens.weight"), Role::Embedding(Part::Weight));
        assert_eq!(outer("lm_head.biases"), Role::Head(Part::Biases));
        assert!(MISTRAL.classify("model.norm.scales", 4).is_err());
    }

    #[test]
    fn the_exact_set_is_always_within_the_possible_leaves() {
        for family in FAMILIES {
            let all = |bias| {
                if bias == Bias::Absent { "false" } else { "true" }
            };
            let json = format!(
                r#"{{"architectures":["{}"],"hidden_size":8,"num_hidden_layers":1,
                "num_attention_heads":2,"intermediate_size":16,"vocab_size":32,"rms_norm_eps":1e-6,
                "max_position_embeddings":64,"attention_bias":{},"mlp_bias":{}}}"#,
                family.architecture,
                all(family.output_bias),
                all(family.mlp_bias),
            );
            let config = ModelConfig::parse(json.as_bytes()).unwrap();
            let mut exact: Vec<_> =
                family.layer_tensors(&config).into_iter().map(|(leaf, _)| leaf).collect();
            let mut possible = family.leaves();
            exact.sort();
            possible.sort();
            assert_eq!(exact, possible, "{}", family.architecture);
        }
    }
}
