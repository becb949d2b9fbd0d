//! What a made-up model looks like, and the shapes that tests and figures are about.
use cake_checkpoint::{Affine, Dtype};
use serde_json::{Value, json};

/// What a made-up model looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Qwen2, with biases on queries, keys and values; else Llama, Qwen3 if there are experts, or Qwen3.5 if there is a delta
    /// rule.
    pub qwen2: bool,
    /// A mixture of experts in place of the feed-forward part of every layer.
    pub experts: Option<Experts>,
    /// A delta rule in place of attention, as in Qwen3.5, but on each fourth layer.
    pub delta: Option<Delta>,
    /// How matrices are packed, as MLX does it; plain numbers if `None`.
    pub packed: Option<Affine>,
    /// Width of hidden states.
    pub hidden_size: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Tokens.
    pub vocab_size: usize,
    /// Longest sequence.
    pub max_positions: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Llama 3's scaling of it (factor 32, from 8192 positions).
    pub rope_llama3: bool,
    /// Element type of every tensor that is no codes: F32, F16 or BF16.
    pub dtype: Dtype,
    /// Start another file once one has so many bytes; one file if `None`.
    pub shard_bytes: Option<u64>,
    /// Deal tensors out over so many files, one to each in turn, so that names lie anywhere.
    pub dealt_files: Option<usize>,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token goes to.
    pub chosen: usize,
    /// Width of each.
    pub inner_size: usize,
}

/// The heads of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Width of one head of any kind.
    pub head_dim: usize,
}

impl Delta {
    /// As Qwen3.5 9B and 4B have it.
    pub const QWEN: Self = Self { key_heads: 16, value_heads: 32, head_dim: 128 };
}

impl ModelShape {
    /// Names that [`ModelShape::named`] knows.
    pub const NAMES: &[&str] = &[
        "llama-1b",
        "llama-small",
        "llama-tiny",
        "qwen2.5-7b-mlx4",
        "qwen3-moe-4b",
        "qwen3.5-2b-half",
    ];

    /// A shape by name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "llama-1b" => Some(Self::llama_1b()),
            "llama-small" => Some(Self::small()),
            "llama-tiny" => Some(Self::tiny()),
            "qwen2.5-7b-mlx4" => Some(Self::qwen_7b_mlx4()),
            "qwen3-moe-4b" => Some(Self::qwen3_moe_4b()),
            "qwen3.5-2b-half" => Some(Self::qwen3_5_half()),
            _ => None,
        }
    }

    /// Llama 3.2 1B: 2.3 GiB in bf16.
    pub fn llama_1b() -> Self {
        Self {
            qwen2: false,
            experts: None,
            delta: None,
            packed: None,
            hidden_size: 2048,
            intermediate_size: 8192,
            layers: 16,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            vocab_size: 128_256,
            max_positions: 131_072,
            tied: true,
            rope_theta: 500_000.0,
            rope_llama3: true,
            dtype: Dtype::BF16,
            shard_bytes: None,
            dealt_files: None,
        }
    }

    /// Layers of 6 MiB: large enough to be cut in the middle, small enough for a test.
    pub fn small() -> Self {
        Self {
            qwen2: false,
            experts: None,
            delta: None,
            packed: None,
            hidden_size: 512,
            intermediate_size: 1536,
            layers: 8,
            heads: 8,
            kv_heads: 4,
            head_dim: 64,
            vocab_size: 384,
            max_positions: 512,
            tied: true,
            rope_theta: 10_000.0,
            rope_llama3: false,
            dtype: Dtype::BF16,
            shard_bytes: None,
            dealt_files: None,
        }
    }

    /// A quarter of the arithmetic of [`ModelShape::small`], in layers of 1.5 MiB: for answers that are asked for again and
    /// again while something happens to them.
    pub fn quick() -> Self {
        Self {
            hidden_size: 256,
            intermediate_size: 768,
            heads: 4,
            kv_heads: 2,
            ..ModelShape::small()
        }
    }

    /// As small as the golden checkpoints.
    pub fn tiny() -> Self {
        Self {
            hidden_size: 64,
            intermediate_size: 160,
            layers: 5,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            dtype: Dtype::F32,
            ..Self::small()
        }
    }

    /// Qwen2.5 7B as MLX packs it with 4 bits: 4.0 GiB.
    pub fn qwen_7b_mlx4() -> Self {
        Self {
            qwen2: true,
            experts: None,
            delta: None,
            packed: Some(Affine::Q4),
            hidden_size: 3584,
            intermediate_size: 18_944,
            layers: 28,
            heads: 28,
            kv_heads: 4,
            head_dim: 128,
            vocab_size: 152_064,
            max_positions: 32_768,
            tied: false,
            rope_theta: 1_000_000.0,
            rope_llama3: false,
            dtype: Dtype::F16,
            shard_bytes: None,
            dealt_files: None,
        }
    }

    /// Six of the 48 layers of Qwen3 30B-A3B, with a small vocabulary: 7 GiB in bf16, of which a token reads 0.6.
    pub fn qwen3_moe_4b() -> Self {
        Self {
            experts: Some(Experts { count: 128, chosen: 8, inner_size: 768 }),
            hidden_size: 2048,
            intermediate_size: 6144,
            layers: 6,
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            vocab_size: 32_768,
            max_positions: 40_960,
            tied: false,
            rope_theta: 1_000_000.0,
            ..Self::small()
        }
    }

    /// Half of the 32 layers of Qwen3.5 4B, with a vocabulary of 32,768: 3.6 GiB in bf16.
    pub fn qwen3_5_half() -> Self {
        Self {
            delta: Some(Delta::QWEN),
            hidden_size: 2560,
            intermediate_size: 9216,
            layers: 16,
            heads: 16,
            kv_heads: 4,
            head_dim: 256,
            vocab_size: 32_768,
            max_positions: 40_960,
            tied: false,
            rope_theta: 10_000_000.0,
            ..Self::small()
        }
    }

    /// Its `config.json`.
    pub(super) fn config(&self) -> Value {
        let dtype = match self.dtype {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            _ => "bfloat16",
        };
        let scaling = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        let quantization = self
            .packed
            .map(|format| json!({ "group_size": format.group(), "bits": format.bits() }));
        let (architecture, model_type) = match self.experts {
            Some(_) => ("Qwen3MoeForCausalLM", "qwen3_moe"),
            None if self.delta.is_some() => ("Qwen3_5ForCausalLM", "qwen3_5_text"),
            None if self.qwen2 => ("Qwen2ForCausalLM", "qwen2"),
            None => ("LlamaForCausalLM", "llama"),
        };
        let mut config = json!({
            "architectures": [architecture],
            "attention_bias": false,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_positions,
            "mlp_bias": false,
            "model_type": model_type,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "quantization": quantization,
            "rms_norm_eps": 1e-5,
            "rope_scaling": if self.rope_llama3 { scaling } else { Value::Null },
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied,
            "torch_dtype": dtype,
            "vocab_size": self.vocab_size,
        });
        if let Some(Experts { count, chosen, inner_size }) = self.experts {
            config["num_experts"] = json!(count);
            config["num_experts_per_tok"] = json!(chosen);
            config["moe_intermediate_size"] = json!(inner_size);
            config["norm_topk_prob"] = json!(true);
        }
        if let Some(Delta { key_heads, value_heads, head_dim }) = self.delta {
            config["linear_num_key_heads"] = json!(key_heads);
            config["linear_num_value_heads"] = json!(value_heads);
            config["linear_key_head_dim"] = json!(head_dim);
            config["linear_value_head_dim"] = json!(head_dim);
        }
        config
    }
}
