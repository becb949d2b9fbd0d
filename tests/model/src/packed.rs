//! Models as tools publish them packed: every layout of safetensors that is read, with random weights.
use cake_checkpoint::{Affine, Bnb, Dtype, Levels, ModelSpec, TensorKind};
use serde_json::{Value, json};

use super::published::Published;
use super::shape::ModelShape;
use super::tensors::{Content, Tensor, of_layers};

/// Weights that share a scale in GPTQ and AWQ, and a block's side in FP8.
const GROUP: usize = 128;
/// The same in compressed-tensors' 4 bits, and in MXFP4 and MXFP8.
const SMALL_GROUP: usize = 32;
/// The same in NVFP4.
const NV_GROUP: usize = 16;
/// The same in 4 bits of bitsandbytes.
const BLOCK: usize = 64;
/// Experts of the model in MXFP4, and to how many a token goes.
const EXPERTS: usize = 4;
const CHOSEN: usize = 2;

/// How the matrices of a model's layers are packed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Packing {
    /// FP8 with a scale for each 128 × 128, as DeepSeek has it.
    Fp8Blocks,
    /// FP8 with a scale for each row, by compressed-tensors.
    Fp8Rows,
    /// FP8 with one scale for a matrix, as Mistral has it.
    Fp8Matrices,
    /// Experts in MXFP4, as gpt-oss has them; the rest in bf16.
    Mxfp4,
    /// NVFP4 by compressed-tensors.
    Nvfp4,
    /// 4 bits by compressed-tensors (`pack-quantized`).
    PackQuantized,
    /// GPTQ in 4 bits.
    Gptq,
    /// AWQ in 4 bits.
    Awq,
    /// NF4 by bitsandbytes, with one scale or two.
    Nf4 {
        /// Whether scales have scales.
        nested: bool,
    },
    /// MLX's affine packing in so many bits.
    Mlx(usize),
    /// MLX's mode `mxfp4`.
    MlxMxfp4,
    /// MLX's mode `mxfp8`.
    MlxMxfp8,
    /// MLX's mode `nvfp4`.
    MlxNvfp4,
}

impl Packing {
    /// All of them.
    pub const ALL: [Packing; 19] = [
        Packing::Fp8Blocks,
        Packing::Fp8Rows,
        Packing::Fp8Matrices,
        Packing::Mxfp4,
        Packing::Nvfp4,
        Packing::PackQuantized,
        Packing::Gptq,
        Packing::Awq,
        Packing::Nf4 { nested: false },
        Packing::Nf4 { nested: true },
        Packing::Mlx(2),
        Packing::Mlx(3),
        Packing::Mlx(4),
        Packing::Mlx(5),
        Packing::Mlx(6),
        Packing::Mlx(8),
        Packing::MlxMxfp4,
        Packing::MlxMxfp8,
        Packing::MlxNvfp4,
    ];

    /// What people call it.
    pub fn name(self) -> String {
        match self {
            Packing::Fp8Blocks => "FP8 128 × 128".into(),
            Packing::Fp8Rows => "FP8 rows".into(),
            Packing::Fp8Matrices => "FP8 matrices".into(),
            Packing::Mxfp4 => "MXFP4 experts".into(),
            Packing::Nvfp4 => "NVFP4".into(),
            Packing::PackQuantized => "compressed-tensors int4".into(),
            Packing::Gptq => "GPTQ 4".into(),
            Packing::Awq => "AWQ 4".into(),
            Packing::Nf4 { nested: false } => "NF4".into(),
            Packing::Nf4 { nested: true } => "NF4, double".into(),
            Packing::Mlx(bits) => format!("MLX {bits}"),
            Packing::MlxMxfp4 => "MLX mxfp4".into(),
            Packing::MlxMxfp8 => "MLX mxfp8".into(),
            Packing::MlxNvfp4 => "MLX nvfp4".into(),
        }
    }

    /// Bytes of all layers' tensors.
    pub fn layers_bytes(self, shape: &ModelShape) -> u64 {
        let all = self.tensors(shape);
        all.iter().filter(|it| it.name.starts_with("model.layers.")).map(Tensor::bytes).sum()
    }

    /// The `config.json` of a model of that shape.
    pub(super) fn config(self, shape: &ModelShape) -> Value {
        let mut config = shape.config();
        let mlx = |bits: usize, group: usize, mode: &str| json!({ "bits": bits, "group_size": group, "mode": mode });
        let quantization = match self {
            Packing::Mxfp4 => return gpt_oss(shape),
            Packing::Fp8Blocks => json!({
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [GROUP, GROUP],
            }),
            Packing::Fp8Rows => compressed(
                "float-quantized",
                json!({ "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true }),
            ),
            Packing::Fp8Matrices => json!({
                "quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null,
            }),
            Packing::Nvfp4 => compressed(
                "nvfp4-pack-quantized",
                json!({
                    "num_bits": 4, "type": "float", "strategy": "tensor_group", "symmetric": true,
                    "group_size": NV_GROUP,
                }),
            ),
            Packing::PackQuantized => compressed(
                "pack-quantized",
                json!({
                    "num_bits": 4, "type": "int", "strategy": "group", "symmetric": true,
                    "group_size": SMALL_GROUP,
                }),
            ),
            Packing::Gptq => json!({
                "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": false, "sym": false,
                "checkpoint_format": "gptq",
            }),
            Packing::Awq => json!({
                "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": true, "version": "gemm",
            }),
            Packing::Nf4 { nested } => json!({
                "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": nested, "bnb_4bit_quant_storage": "uint8",
            }),
            Packing::Mlx(bits) => mlx(bits, Affine::Q4.group(), "affine"),
            Packing::MlxMxfp4 => mlx(4, SMALL_GROUP, "mxfp4"),
            Packing::MlxMxfp8 => mlx(8, SMALL_GROUP, "mxfp8"),
            Packing::MlxNvfp4 => mlx(4, NV_GROUP, "nvfp4"),
        };
        let key = if self.is_of_mlx() { "quantization" } else { "quantization_config" };
        config[key] = quantization;
        config
    }

    /// All tensors of a model of that shape, under the names of its file.
    pub(super) fn tensors(self, shape: &ModelShape) -> Vec<Tensor> {
        let config = self.config(shape).to_string();
        let model = ModelSpec::parse(config.as_bytes()).expect("a configuration that runs");
        if self == Packing::Mxfp4 {
            return Published::GptOss120b.tensors_of(&model);
        }
        let layers = of_layers(&model).into_iter().map(|it| (it, true));
        // Only MLX packs embeddings.
        let outer = model.outer_tensors().into_iter().map(|it| (it, self.is_of_mlx()));
        let stored = |((name, kind, shape), packed): ((String, TensorKind, Vec<u64>), bool)| match (
            kind,
            &shape[..],
        ) {
            (TensorKind::Matrix, &[rows, columns]) if packed => {
                let module = name.strip_suffix(".weight").expect("a module's weight");
                self.matrix(&Module {
                    name: module,
                    rows: rows as usize,
                    columns: columns as usize,
                })
            }
            (TensorKind::Matrix, _) => vec![plain(name, &shape, 0.0, 0.05)],
            _ => vec![plain(name, &shape, 1.0, 0.1)],
        };
        layers.chain(outer).flat_map(stored).collect()
    }

    fn is_of_mlx(self) -> bool {
        matches!(self, Packing::Mlx(_) | Packing::MlxMxfp4 | Packing::MlxMxfp8 | Packing::MlxNvfp4)
    }

    /// What a matrix is stored in.
    fn matrix(self, module: &Module<'_>) -> Vec<Tensor> {
        let &Module { rows, columns, .. } = module;
        let scale = |part, dtype, shape: &[usize]| module.numbers(part, dtype, shape, 0.01);
        match self {
            Packing::Fp8Blocks => {
                let grid = [rows.div_ceil(GROUP), columns.div_ceil(GROUP)];
                vec![module.bytes_of_numbers(), scale("weight_scale_inv", Dtype::F32, &grid)]
            }
            Packing::Fp8Rows => {
                vec![module.bytes_of_numbers(), scale("weight_scale", Dtype::BF16, &[rows, 1])]
            }
            Packing::Fp8Matrices => vec![
                module.bytes_of_numbers(),
                scale("weight_scale_inv", Dtype::BF16, &[]),
                scale("activation_scale", Dtype::BF16, &[]),
            ],
            Packing::Mxfp4 => unreachable!("its tensors are those of gpt-oss"),
            Packing::Nvfp4 => vec![
                module.codes("weight_packed", Dtype::U8, &[rows, columns / 2]),
                module.small("weight_scale", Dtype::F8E4M3, &[rows, columns / NV_GROUP]),
                module.numbers("weight_global_scale", Dtype::F32, &[1], 1.0),
                module.numbers("input_global_scale", Dtype::F32, &[1], 1.0),
            ],
            Packing::PackQuantized => {
                let shape = [rows as u64, columns as u64].map(u64::to_le_bytes).concat();
                vec![
                    module.codes("weight_packed", Dtype::I32, &[rows, columns / 8]),
                    scale("weight_scale", Dtype::BF16, &[rows, columns / SMALL_GROUP]),
                    module.part("weight_shape", Dtype::I64, &[2], Content::Bytes(shape)),
                ]
            }
            Packing::Gptq => {
                let group = |column: usize| ((column / GROUP) as u32).to_le_bytes();
                let groups = (0..columns).flat_map(group).collect();
                vec![
                    module.codes("qweight", Dtype::I32, &[columns / 8, rows]),
                    module.codes("qzeros", Dtype::I32, &[columns / GROUP, rows / 8]),
                    scale("scales", Dtype::F16, &[columns / GROUP, rows]),
                    module.part("g_idx", Dtype::I32, &[columns], Content::Bytes(groups)),
                ]
            }
            Packing::Awq => vec![
                module.codes("qweight", Dtype::I32, &[columns, rows / 8]),
                module.codes("qzeros", Dtype::I32, &[columns / GROUP, rows / 8]),
                scale("scales", Dtype::F16, &[columns / GROUP, rows]),
            ],
            Packing::Nf4 { nested } => module.nf4(nested),
            Packing::Mlx(bits) => {
                let groups = [rows, columns / Affine::Q4.group()];
                vec![
                    module.codes("weight", Dtype::U32, &[rows, columns * bits / 32]),
                    scale("scales", Dtype::BF16, &groups),
                    scale("biases", Dtype::BF16, &groups),
                ]
            }
            Packing::MlxMxfp4 => vec![
                module.codes("weight", Dtype::U32, &[rows, columns / 8]),
                module.small("scales", Dtype::U8, &[rows, columns / SMALL_GROUP]),
            ],
            Packing::MlxMxfp8 => vec![
                module.small("weight", Dtype::U32, &[rows, columns / 4]),
                module.small("scales", Dtype::U8, &[rows, columns / SMALL_GROUP]),
            ],
            Packing::MlxNvfp4 => vec![
                module.codes("weight", Dtype::U32, &[rows, columns / 8]),
                module.small("scales", Dtype::U8, &[rows, columns / NV_GROUP]),
            ],
        }
    }
}

/// A module with a matrix.
struct Module<'a> {
    name: &'a str,
    rows: usize,
    columns: usize,
}

impl Module<'_> {
    fn part(&self, part: &str, dtype: Dtype, shape: &[usize], content: Content) -> Tensor {
        Tensor { name: format!("{}.{part}", self.name), dtype, shape: shape.to_vec(), content }
    }

    fn codes(&self, part: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
        self.part(part, dtype, shape, Content::Codes)
    }

    fn small(&self, part: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
        self.part(part, dtype, shape, Content::Small)
    }

    fn numbers(&self, part: &str, dtype: Dtype, shape: &[usize], centre: f32) -> Tensor {
        self.part(part, dtype, shape, Content::Numbers { centre, spread: centre / 10.0 })
    }

    /// Codes of NF4, and all that bitsandbytes has beside them.
    fn nf4(&self, nested: bool) -> Vec<Tensor> {
        let count = self.rows * self.columns;
        let blocks = count / BLOCK;
        let mut state = json!({
            "quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [self.rows, self.columns],
        });
        let levels = Levels::Nf4.table().iter().flat_map(|level| level.to_le_bytes()).collect();
        let mut all = vec![
            self.codes("weight", Dtype::U8, &[count / 2, 1]),
            self.part("weight.quant_map", Dtype::F32, &[16], Content::Bytes(levels)),
        ];
        if nested {
            let shared = [blocks.div_ceil(Bnb::NESTED_BLOCK as usize)];
            for (field, value) in [
                ("nested_blocksize", json!(Bnb::NESTED_BLOCK)),
                ("nested_dtype", json!("float32")),
                ("nested_offset", json!(0.05)),
            ] {
                state[field] = value;
            }
            all.extend([
                self.codes("weight.absmax", Dtype::U8, &[blocks]),
                self.numbers("weight.nested_absmax", Dtype::F32, &shared, 0.01),
                self.numbers("weight.nested_quant_map", Dtype::F32, &[256], 0.5),
            ]);
        } else {
            all.push(self.numbers("weight.absmax", Dtype::F32, &[blocks], 0.05));
        }
        let text = state.to_string().into_bytes();
        let (name, shape) = ("weight.quant_state.bitsandbytes__nf4", [text.len()]);
        all.push(self.part(name, Dtype::U8, &shape, Content::Bytes(text)));
        all
    }

    fn bytes_of_numbers(&self) -> Tensor {
        self.small("weight", Dtype::F8E4M3, &[self.rows, self.columns])
    }
}

fn plain(name: String, shape: &[u64], centre: f32, spread: f32) -> Tensor {
    let shape = shape.iter().map(|axis| *axis as usize).collect();
    Tensor { name, dtype: Dtype::BF16, shape, content: Content::Numbers { centre, spread } }
}

/// What compressed-tensors says of weights in that format.
fn compressed(format: &str, weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": { "group_0": { "format": format, "targets": ["Linear"], "weights": weights } },
    })
}

/// gpt-oss with the widths of that shape: its experts together are as wide as the feed-forward part.
fn gpt_oss(shape: &ModelShape) -> Value {
    let mut config = Published::GptOss120b.config();
    for (field, value) in [
        ("head_dim", shape.head_dim),
        ("hidden_size", shape.hidden_size),
        ("intermediate_size", shape.intermediate_size / EXPERTS),
        ("max_position_embeddings", shape.max_positions),
        ("num_attention_heads", shape.heads),
        ("num_experts_per_tok", CHOSEN),
        ("experts_per_token", CHOSEN),
        ("num_hidden_layers", shape.layers),
        ("num_key_value_heads", shape.kv_heads),
        ("num_local_experts", EXPERTS),
        ("vocab_size", shape.vocab_size),
    ] {
        config[field] = json!(value);
    }
    config
}
