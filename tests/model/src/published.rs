//! Models as they are published in numbers of a byte and of 4 bits, of which only headers are made: their configurations, and
//! the names and shapes that their files have.
use std::collections::BTreeMap;

use cake_checkpoint::{Dtype, Encoding, Fp4, Fp8, ModelSpec, TensorKind};
use serde_json::{Value, json};

use super::tensors::{Content, Tensor, of_layers};

/// A file has no more bytes than this, unless a tensor has.
const FILE_BYTES: u64 = 4 << 30;
/// Weights that share a scale in a block, along each axis.
const BLOCK: u64 = 128;
/// The same in MXFP4, along a row.
const GROUP: u64 = 32;

/// A published model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// gpt-oss-120b: experts in MXFP4.
    GptOss120b,
    /// GLM-4.5-Air-FP8: a scale for each row, by compressed-tensors' `float-quantized`.
    Glm45Air,
    /// DeepSeek-V3: numbers of a byte in blocks.
    DeepseekV3,
}

impl Published {
    /// All of them.
    pub const ALL: [Published; 3] =
        [Published::GptOss120b, Published::Glm45Air, Published::DeepseekV3];

    /// Its name, with how it is stored.
    pub const fn name(self) -> &'static str {
        match self {
            Published::GptOss120b => "gpt-oss-120b (MXFP4)",
            Published::Glm45Air => "GLM-4.5-Air (FP8)",
            Published::DeepseekV3 => "DeepSeek-V3 (FP8 in blocks)",
        }
    }

    /// How most of its matrices are stored.
    pub fn encoding(self) -> Encoding {
        match self {
            Published::GptOss120b => Encoding::Fp4(Fp4::Mx),
            Published::Glm45Air => Encoding::Fp8(Fp8::Row),
            Published::DeepseekV3 => {
                Encoding::Fp8(Fp8::block(BLOCK, BLOCK).expect("blocks that there are"))
            }
        }
    }

    /// Its `config.json`.
    pub(super) fn config(self) -> Value {
        match self {
            Published::GptOss120b => gpt_oss_120b(),
            Published::Glm45Air => glm_45_air(),
            Published::DeepseekV3 => deepseek_v3(),
        }
    }

    fn model(self) -> ModelSpec {
        ModelSpec::parse(self.config().to_string().as_bytes()).expect("a configuration that runs")
    }

    /// Numbers of all its tensors, scales not among them.
    pub fn numbers(self) -> u64 {
        let model = self.model();
        let layers = model.layers.iter().flat_map(|layer| layer.tensors());
        let shapes = layers.map(|it| it.shape);
        let outer = model.outer_tensors().into_iter().map(|(_, _, shape)| shape);
        shapes.chain(outer).map(|shape| shape.iter().product::<u64>()).sum()
    }

    /// Bytes of its layers' tensors.
    pub fn layers_bytes(self) -> u64 {
        let all = self.tensors();
        let layers = all.iter().filter(|it| it.name.starts_with("model.layers."));
        layers.map(Tensor::bytes).sum()
    }

    /// What each file has.
    pub(super) fn files(self) -> Vec<Vec<Tensor>> {
        let mut files = vec![Vec::new()];
        let mut bytes = 0;
        for tensor in self.tensors() {
            if bytes > 0 && bytes + tensor.bytes() > FILE_BYTES {
                files.push(Vec::new());
                bytes = 0;
            }
            bytes += tensor.bytes();
            files.last_mut().expect("there is always one").push(tensor);
        }
        files
    }

    /// All its tensors, under the names of its files.
    fn tensors(self) -> Vec<Tensor> {
        self.tensors_of(&self.model())
    }

    /// Those of a model as it is, whatever its size.
    pub(super) fn tensors_of(self, model: &ModelSpec) -> Vec<Tensor> {
        let mut all = Vec::new();
        let mut stacks = BTreeMap::new();
        for (name, kind, shape) in of_layers(model) {
            match self {
                Published::GptOss120b if name.contains(".experts.") => {
                    stack(&mut stacks, &name, &shape)
                }
                // What chooses experts is plain.
                _ if kind == TensorKind::Matrix
                    && !name.ends_with(".mlp.gate.weight")
                    && self != Published::GptOss120b =>
                {
                    all.extend(self.narrow(&name, &shape));
                }
                _ => all.push(plain(name, &shape)),
            }
        }
        all.extend(stacks.into_iter().flat_map(|(name, stack)| stack.stored(&name)));
        let outer = model.outer_tensors().into_iter();
        all.extend(outer.map(|(name, _, shape)| plain(name, &shape)));
        all
    }

    /// A matrix of numbers of a byte.
    fn narrow(self, name: &str, shape: &[u64]) -> [Tensor; 2] {
        let (scales, grid) = match self {
            Published::Glm45Air => ("weight_scale", vec![shape[0], 1]),
            _ => ("weight_scale_inv", shape.iter().map(|axis| axis.div_ceil(BLOCK)).collect()),
        };
        let dtype = if self == Published::Glm45Air { Dtype::BF16 } else { Dtype::F32 };
        let module = name.strip_suffix("weight").expect("the weight of a module");
        let scales = tensor(format!("{module}{scales}"), dtype, &grid);
        [tensor(name.to_owned(), Dtype::F8E4M3, shape), scales]
    }
}

/// A matrix, or a bias, of all experts of a layer.
#[derive(Default)]
struct Stack {
    count: u64,
    /// Of one expert; of gate and up together.
    rows: u64,
    columns: Option<u64>,
}

/// Adds a tensor of one expert to those of all.
fn stack(stacks: &mut BTreeMap<String, Stack>, name: &str, shape: &[u64]) {
    let (before, rest) = name.split_once(".experts.").expect("one of an expert");
    let (number, leaf) = rest.split_once('.').expect("a module of an expert");
    let (module, ending) = leaf.split_once('.').expect("a tensor of a module");
    let (all, both) = match module {
        "down_proj" => (module, false),
        _ => ("gate_up_proj", true),
    };
    let found = stacks.entry(format!("{before}.experts.{all}.{ending}")).or_default();
    found.rows = if both { 2 * shape[0] } else { shape[0] };
    found.columns = shape.get(1).copied();
    found.count = found.count.max(number.parse::<u64>().expect("a number") + 1);
}

impl Stack {
    /// As the files of gpt-oss have it.
    fn stored(&self, name: &str) -> Vec<Tensor> {
        let Stack { count, rows, columns } = *self;
        let (module, _) = name.rsplit_once('.').expect("a tensor of a module");
        let Some(columns) = columns else {
            return vec![plain(format!("{module}_bias"), &[count, rows])];
        };
        let groups = columns / GROUP;
        vec![
            tensor(format!("{module}_blocks"), Dtype::U8, &[count, rows, groups, GROUP / 2]),
            tensor(format!("{module}_scales"), Dtype::U8, &[count, rows, groups]),
        ]
    }
}

fn plain(name: String, shape: &[u64]) -> Tensor {
    let content = Content::Numbers { centre: 0.0, spread: 0.05 };
    Tensor { content, ..tensor(name, Dtype::BF16, shape) }
}

fn tensor(name: String, dtype: Dtype, shape: &[u64]) -> Tensor {
    let shape = shape.iter().map(|axis| *axis as usize).collect();
    Tensor { name, dtype, shape, content: Content::Small }
}

fn gpt_oss_120b() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
        "eos_token_id": 1, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
        "max_position_embeddings": 131_072, "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 150_000, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
            "original_max_position_embeddings": 4096, "truncate": false},
        "tie_word_embeddings": false, "vocab_size": 201_088,
        "quantization_config": {"quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    })
}

fn glm_45_air() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "attention_bias": true,
        "eos_token_id": 1, "first_k_dense_replace": 1, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 10_944, "max_position_embeddings": 131_072,
        "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 96,
        "num_experts_per_tok": 8, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
        "topk_group": 1, "use_qk_norm": false, "vocab_size": 151_552,
        "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
            "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}}}},
    })
}

fn deepseek_v3() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "attention_bias": false, "eos_token_id": 1, "first_k_dense_replace": 3,
        "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18_432,
        "kv_lora_rank": 512, "max_position_embeddings": 163_840, "moe_intermediate_size": 2048,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 10_000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
        "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129_280,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
            "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cake_checkpoint::Checkpoint;

    /// As their authors say: 117, 106 and 671 billions.
    #[test]
    fn they_have_as_many_numbers_as_their_authors_say() {
        for (model, billions) in
            [(Published::GptOss120b, 117), (Published::Glm45Air, 107), (Published::DeepseekV3, 671)]
        {
            let found = (model.numbers() as f64 / 1e9).round() as u64;
            assert_eq!(found, billions, "{}", model.name());
        }
    }

    #[test]
    fn headers_alone_open_with_the_bytes_that_were_written() {
        for model in Published::ALL {
            let home = tempfile::tempdir().expect("a temporary folder");
            crate::make_published(home.path(), model).expect("written");
            let path = home.path().display().to_string();
            let checkpoint = Checkpoint::open(&path).unwrap_or_else(|it| panic!("{it}"));
            let layers = 0..checkpoint.config.layers.len();
            let bytes: u64 = layers.map(|layer| checkpoint.layer_bytes(layer)).sum();
            assert_eq!(bytes, model.layers_bytes(), "{}", model.name());
            let last = checkpoint.layer_tensors(checkpoint.config.layers.len() - 1);
            assert!(last.iter().any(|it| it.encoding == Some(model.encoding())));
        }
    }
}
