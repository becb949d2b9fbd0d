//! Checkpoints of any size with random weights, written as they are made up.
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cake_checkpoint::units::format_bytes;
use cake_checkpoint::{Affine, Dtype};
use serde_json::{Map, Value, json};

mod random;
mod tensors;

use random::Weights;
use tensors::{Content, Tensor};

/// Files beside the weights, taken from a golden checkpoint.
const TEXT_FILES: &[&str] =
    &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
/// Bytes written at once.
const BUFFER: usize = 1 << 20;

/// What a made-up model looks like.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Qwen2, with biases on queries, keys and values; else Llama, or Qwen3 if there are experts.
    pub qwen2: bool,
    /// A mixture of experts in place of the feed-forward part of every layer.
    pub experts: Option<Experts>,
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

impl ModelShape {
    /// Names that [`ModelShape::named`] knows.
    pub const NAMES: &[&str] =
        &["llama-1b", "llama-small", "llama-tiny", "qwen2.5-7b-mlx4", "qwen3-moe-4b"];

    /// A shape by name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "llama-1b" => Some(Self::llama_1b()),
            "llama-small" => Some(Self::small()),
            "llama-tiny" => Some(Self::tiny()),
            "qwen2.5-7b-mlx4" => Some(Self::qwen_7b_mlx4()),
            "qwen3-moe-4b" => Some(Self::qwen3_moe_4b()),
            _ => None,
        }
    }

    /// Llama 3.2 1B: 2.3 GiB in bf16.
    pub fn llama_1b() -> Self {
        Self {
            qwen2: false,
            experts: None,
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
        }
    }

    /// Layers of 6 MiB: large enough to be cut in the middle, small enough for a test.
    pub fn small() -> Self {
        Self {
            qwen2: false,
            experts: None,
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
            max_positions: 40_960,
            tied: false,
            rope_theta: 1_000_000.0,
            ..Self::small()
        }
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// Bytes of one layer's tensors.
    pub fn layer_bytes(&self) -> u64 {
        let prefix = "model.layers.0.";
        let tensors = self.tensors();
        let layer = tensors.iter().filter(|tensor| tensor.name.starts_with(prefix));
        layer.map(Tensor::bytes).sum()
    }

    fn config(&self) -> Value {
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
        config
    }
}

/// Writes a checkpoint into `directory`, which is made. The same shape and seed give the same
/// tensors, however many files they are spread over.
///
/// # Errors
/// If the directory cannot be written, or the dtype is none that weights can have.
pub fn make(directory: &Path, shape: &ModelShape, seed: u64) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("config.json"), serde_json::to_vec_pretty(&shape.config())?)?;
    let golden = crate::golden::directory().join("llama");
    for name in TEXT_FILES {
        std::fs::copy(golden.join(name), directory.join(name))?;
    }
    let files = files(shape);
    let mut map = Map::new();
    let mut weights = Weights::new(shape.dtype, seed)?;
    for (index, tensors) in files.iter().enumerate() {
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        write_file(&directory.join(&name), tensors, &mut weights)?;
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
    }
    if files.len() > 1 {
        let index = json!({ "metadata": { "total_size": shape.bytes() }, "weight_map": map });
        let path = directory.join("model.safetensors.index.json");
        std::fs::write(path, serde_json::to_vec_pretty(&index)?)?;
    }
    Ok(())
}

/// One line for people.
pub fn describe(shape: &ModelShape) -> String {
    let packed = shape.packed.map(|format| format!(", packed with {format}")).unwrap_or_default();
    let bytes = format_bytes(shape.bytes());
    format!("{} layers, {bytes}, {}{packed}", shape.layers, shape.dtype)
}

/// Which tensors go into which file.
fn files(shape: &ModelShape) -> Vec<Vec<Tensor>> {
    let limit = shape.shard_bytes.unwrap_or(u64::MAX);
    let mut files: Vec<Vec<Tensor>> = vec![Vec::new()];
    let mut bytes = 0;
    for tensor in shape.tensors() {
        let size = tensor.bytes();
        if bytes > 0 && bytes + size > limit {
            files.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        files.last_mut().expect("there is always one").push(tensor);
    }
    files
}

fn write_file(path: &Path, tensors: &[Tensor], weights: &mut Weights) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, end],
        });
        header.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(BUFFER, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for tensor in tensors {
        let (name, elements) = (&tensor.name, tensor.elements());
        match tensor.content {
            Content::Numbers { centre, spread } => {
                weights.write(&mut out, name, elements, centre, spread)?;
            }
            Content::Codes => weights.write_codes(&mut out, name, elements)?,
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::Checkpoint;

    fn made(shape: &ModelShape, seed: u64) -> (tempfile::TempDir, Checkpoint) {
        let home = tempfile::tempdir().expect("a temporary folder");
        make(home.path(), shape, seed).expect("written");
        let checkpoint =
            Checkpoint::open(&home.path().display().to_string()).expect("a checkpoint");
        (home, checkpoint)
    }

    fn layer(checkpoint: &Checkpoint, layer: usize) -> Vec<u8> {
        let source = cake_checkpoint::BlobSource::new(checkpoint, layer);
        let mut bytes = Vec::new();
        source.write_to(&mut bytes).expect("read");
        bytes
    }

    #[test]
    fn the_same_seed_gives_the_same_tensors_in_one_file_or_in_several() {
        let shape = ModelShape::tiny();
        let spread = ModelShape { shard_bytes: Some(200_000), ..shape.clone() };
        let (_one, a) = made(&shape, 3);
        let (several, b) = made(&spread, 3);
        let (_other, c) = made(&shape, 4);
        assert!(several.path().join("model.safetensors.index.json").exists());
        assert_eq!(a.total_bytes(), shape.bytes());
        for number in 0..shape.layers {
            assert_eq!(layer(&a, number), layer(&b, number));
            assert_ne!(layer(&a, number), layer(&c, number));
        }
    }

    #[test]
    fn every_dtype_is_read_as_what_it_says() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let shape = ModelShape { dtype, tied: false, ..ModelShape::tiny() };
            let (_home, checkpoint) = made(&shape, 1);
            assert_eq!(checkpoint.layer_tensors(0)[0].dtype, dtype);
        }
    }

    #[test]
    fn a_packed_model_is_what_mlx_writes() {
        let shape = ModelShape {
            qwen2: true,
            packed: Affine::new(4, 32),
            tied: false,
            ..ModelShape::tiny()
        };
        let (_home, checkpoint) = made(&shape, 5);
        assert_eq!(checkpoint.total_bytes(), shape.bytes());
        assert_eq!(checkpoint.layer_tensors(0).len(), 26);
        let head = checkpoint.head_matrix().and_then(|head| head.packed).expect("packed");
        assert_eq!(Some(head.format), shape.packed);
    }

    #[test]
    fn a_mixture_has_its_experts() {
        let experts = Some(Experts { count: 8, chosen: 2, inner_size: 48 });
        let (_home, checkpoint) = made(&ModelShape { experts, ..ModelShape::tiny() }, 5);
        assert_eq!(checkpoint.layer_tensors(0).len(), 8 + 1 + 3 * 8);
    }

    #[test]
    fn the_7b_shape_has_the_size_of_mlx_communitys_qwen() {
        let shape = ModelShape::qwen_7b_mlx4();
        assert_eq!((shape.bytes(), shape.layer_bytes()), (4_284_263_424, 131_111_936));
    }

    #[test]
    fn the_1b_shape_has_the_size_of_llama_3_2_1b() {
        // 1,235,814,400 parameters in bf16.
        assert_eq!(ModelShape::llama_1b().bytes(), 2 * 1_235_814_400);
    }
}
