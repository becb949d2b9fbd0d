//! Architectures of which there is no file of llama.cpp's: golden models of the Hub's form, put into GGUF files as
//! `tests/golden-gguf/README.md` and the format's documentation say, are the same models when they are read.

use std::collections::BTreeMap;

use super::made::{BOOL, F32, Info, LIST, Made, TEXT, U32, list, text};
use crate::catalog::{Checkpoint, Tensor};
use crate::encoding::FloatType;
use crate::locate::locate_in;
use crate::model::{ModelSpec, Op, Role};
use crate::testing::golden;

/// What a tensor is called in a layer, on the Hub and there.
type Names = &'static [(&'static str, &'static str)];

const COMMON: Names = &[
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];
const NORMS_OF_LLAMA: Names = &[("post_attention_layernorm.weight", "ffn_norm.weight")];

/// A value under a key of the architecture.
enum Said {
    Whole(u32),
    Number(f32),
    Truth(bool),
}

/// Shape and numbers of what one expert has.
type Numbers = (Vec<u64>, Vec<f32>);

/// A model in another form.
struct Row {
    golden: &'static str,
    arch: &'static str,
    /// Whether rows of queries and keys lie in pairs,
    pairs: bool,
    /// and norms are stored with the 1 that is added to them.
    folded: bool,
    names: &'static [Names],
    /// The beginning of the names of an expert's matrices, gate, up and down.
    experts: Option<(&'static str, [&'static str; 3])>,
    keys: &'static [(&'static str, Said)],
    /// What the format cannot say of it.
    lost: fn(&mut ModelSpec),
}

const ROWS: &[Row] = &[
    Row {
        golden: "granite",
        arch: "granite",
        pairs: true,
        folded: false,
        names: &[COMMON, NORMS_OF_LLAMA],
        experts: None,
        keys: &[
            ("block_count", Said::Whole(5)),
            ("feed_forward_length", Said::Whole(160)),
            ("attention.layer_norm_rms_epsilon", Said::Number(1e-5)),
            ("rope.freq_base", Said::Number(1e4)),
            ("embedding_scale", Said::Number(1.5)),
            ("residual_scale", Said::Number(0.6)),
            ("attention.scale", Said::Number(0.2)),
            ("logit_scale", Said::Number(4.0)),
        ],
        lost: |_| (),
    },
    Row {
        golden: "phi3",
        arch: "phi3",
        pairs: false,
        folded: false,
        names: &[
            &[
                ("self_attn.qkv_proj.weight", "attn_qkv.weight"),
                ("mlp.gate_up_proj.weight", "ffn_up.weight"),
            ],
            COMMON,
            NORMS_OF_LLAMA,
        ],
        experts: None,
        keys: &[
            ("block_count", Said::Whole(5)),
            ("feed_forward_length", Said::Whole(160)),
            ("attention.layer_norm_rms_epsilon", Said::Number(1e-5)),
            ("rope.freq_base", Said::Number(1e4)),
            ("rope.scaling.original_context_length", Said::Whole(4096)),
            ("attention.sliding_window", Said::Whole(0)),
        ],
        lost: |_| (),
    },
    Row {
        golden: "gemma2",
        arch: "gemma2",
        pairs: false,
        folded: true,
        names: &[
            &[
                ("post_attention_layernorm.weight", "post_attention_norm.weight"),
                ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
                ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
            ],
            COMMON,
        ],
        experts: None,
        keys: &[
            ("block_count", Said::Whole(4)),
            ("feed_forward_length", Said::Whole(160)),
            ("attention.layer_norm_rms_epsilon", Said::Number(1e-5)),
            ("attention.key_length", Said::Whole(32)),
            ("attention.value_length", Said::Whole(32)),
            ("attention.sliding_window", Said::Whole(8)),
            ("attn_logit_softcapping", Said::Number(50.0)),
            ("final_logit_softcapping", Said::Number(30.0)),
        ],
        lost: |spec| {
            for branch in spec.layers.iter_mut().flat_map(|layer| &mut layer.branches) {
                let Op::Attention(attention) = &mut branch.op else { continue };
                attention.scale = (attention.head_dim as f64).powf(-0.5);
            }
        },
    },
    Row {
        golden: "mixtral",
        arch: "llama",
        pairs: true,
        folded: false,
        names: &[
            COMMON,
            NORMS_OF_LLAMA,
            &[("block_sparse_moe.gate.weight", "ffn_gate_inp.weight")],
        ],
        experts: Some(("block_sparse_moe.experts.", ["w1", "w3", "w2"])),
        keys: &[
            ("block_count", Said::Whole(4)),
            ("feed_forward_length", Said::Whole(24)),
            ("attention.layer_norm_rms_epsilon", Said::Number(1e-5)),
            ("rope.freq_base", Said::Number(1e6)),
            ("rope.dimension_count", Said::Whole(16)),
            ("expert_count", Said::Whole(8)),
            ("expert_used_count", Said::Whole(2)),
        ],
        lost: |_| (),
    },
    Row {
        golden: "glm4-moe",
        arch: "glm4moe",
        pairs: false,
        folded: false,
        names: &[
            COMMON,
            &[
                ("self_attn.q_norm.weight", "attn_q_norm.weight"),
                ("self_attn.k_norm.weight", "attn_k_norm.weight"),
                ("post_attention_layernorm.weight", "post_attention_norm.weight"),
                ("mlp.gate.weight", "ffn_gate_inp.weight"),
                ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
                ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
                ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
                ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
            ],
        ],
        experts: Some(("mlp.experts.", ["gate_proj", "up_proj", "down_proj"])),
        keys: &[
            ("block_count", Said::Whole(6)),
            ("nextn_predict_layers", Said::Whole(1)),
            ("feed_forward_length", Said::Whole(160)),
            ("attention.layer_norm_rms_epsilon", Said::Number(1e-5)),
            ("rope.freq_base", Said::Number(1e4)),
            ("rope.dimension_count", Said::Whole(8)),
            ("leading_dense_block_count", Said::Whole(1)),
            ("expert_count", Said::Whole(8)),
            ("expert_used_count", Said::Whole(2)),
            ("expert_feed_forward_length", Said::Whole(48)),
            ("expert_shared_count", Said::Whole(1)),
            ("expert_weights_scale", Said::Number(1.5)),
            ("expert_weights_norm", Said::Truth(true)),
            ("expert_gating_func", Said::Whole(2)),
            ("expert_group_count", Said::Whole(1)),
            ("expert_group_used_count", Said::Whole(1)),
        ],
        lost: |_| (),
    },
];

/// The numbers of a tensor.
fn numbers(checkpoint: &Checkpoint, tensor: &Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.bytes as usize];
    checkpoint.read_at(tensor, 0, &mut bytes).unwrap();
    let float = FloatType::of(tensor.dtype).unwrap();
    let mut numbers = vec![0.0; bytes.len() / float.bytes()];
    float.widen(&bytes, &mut numbers);
    numbers
}

impl Row {
    /// What a tensor is called there, and which expert's it is.
    fn name(&self, hub: &str) -> (String, usize) {
        let outer = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
        ];
        if let Some((_, name)) = outer.iter().find(|(own, _)| *own == hub) {
            return ((*name).to_owned(), 0);
        }
        let (layer, leaf) = hub.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
        if let Some((prefix, modules)) = self.experts
            && let Some(rest) = leaf.strip_prefix(prefix)
        {
            let (number, module) = rest.split_once('.').unwrap();
            let module = module.strip_suffix(".weight").unwrap();
            let at = modules.iter().position(|own| *own == module).unwrap();
            let kind = ["gate", "up", "down"][at];
            return (format!("blk.{layer}.ffn_{kind}_exps.weight"), number.parse().unwrap());
        }
        let mut names = self.names.iter().flat_map(|names| names.iter());
        let name = names.find(|(own, _)| *own == leaf).unwrap_or_else(|| panic!("{hub}")).1;
        (format!("blk.{layer}.{name}"), 0)
    }

    /// The model as a GGUF file.
    fn file(&self, model: &Checkpoint) -> Made {
        let mut made = Made::good();
        made.values.retain(|(key, _, _)| key.starts_with(b"tokenizer."));
        // As many tokens as the embedding has rows; here they need not be good for anything else.
        let token = |id: usize| text(format!("t{id}").as_bytes());
        let tokens: Vec<Vec<u8>> = (0..model.config.vocab_size).map(token).collect();
        made.drop("tokenizer.ggml.token_type");
        made.put("tokenizer.ggml.merges", LIST, list(TEXT, &[]));
        made.put("tokenizer.ggml.tokens", LIST, list(TEXT, &tokens));
        made.put("general.architecture", TEXT, text(self.arch.as_bytes()));
        let attention = &model.config.layers[0];
        let Some(Op::Attention(attention)) = attention.ops().next() else { panic!() };
        let common = [
            ("context_length", Said::Whole(model.config.max_position_embeddings as u32)),
            ("embedding_length", Said::Whole(model.config.hidden_size as u32)),
            ("attention.head_count", Said::Whole(attention.heads as u32)),
            ("attention.head_count_kv", Said::Whole(attention.kv_heads as u32)),
        ];
        for (key, said) in common.iter().chain(self.keys) {
            let key = format!("{}.{key}", self.arch);
            match said {
                Said::Whole(it) => made.put(&key, U32, it.to_le_bytes()),
                Said::Number(it) => made.put(&key, F32, it.to_le_bytes()),
                Said::Truth(it) => made.put(&key, BOOL, [u8::from(*it)]),
            }
        }
        let mut all: BTreeMap<String, BTreeMap<usize, Numbers>> = BTreeMap::new();
        for tensor in model.tensors.iter() {
            let (name, expert) = self.name(&tensor.name);
            let mut values = numbers(model, tensor);
            if self.folded && name.contains("norm") {
                values.iter_mut().for_each(|it| *it += 1.0);
            }
            let heads = match (self.pairs, name.contains("attn_q."), name.contains("attn_k.")) {
                (true, true, _) => attention.heads,
                (true, _, true) => attention.kv_heads,
                _ => 0,
            };
            if heads > 0 {
                values = in_pairs(&values, heads, tensor.shape[0] as usize);
            }
            all.entry(name).or_default().insert(expert, (tensor.shape.clone(), values));
        }
        made.infos.clear();
        made.data.clear();
        for (name, slices) in all {
            made.data.resize(made.data.len().next_multiple_of(32), 0);
            let offset = made.data.len() as u64;
            let mut dims: Vec<u64> = slices[&0].0.iter().rev().copied().collect();
            if name.contains("_exps") {
                dims.push(slices.len() as u64);
            }
            let values = slices.values().flat_map(|(_, values)| values);
            made.data.extend(values.flat_map(|it| it.to_le_bytes()));
            made.infos.push(Info { name: name.into_bytes(), dims, kind: 0, offset });
        }
        made
    }
}

/// The rows of each head's first half and of its second in turn.
fn in_pairs(values: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (width, half) = (values.len() / rows, rows / heads / 2);
    let place = |row: usize| {
        let (head, inside) = (row / (2 * half), row % (2 * half));
        head * 2 * half + inside % 2 * half + inside / 2
    };
    (0..rows).flat_map(|row| &values[place(row) * width..][..width]).copied().collect()
}

#[test]
fn models_of_the_hub_are_the_same_in_this_form() {
    for row in ROWS {
        let model = golden(row.golden);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("made.gguf");
        let made = row.file(&model);
        std::fs::write(&path, made.bytes()).unwrap();
        let location = locate_in(path.to_str().unwrap(), &[]).unwrap();
        let contents = location.container.open(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut expected =
            ModelSpec { eos_token_ids: Vec::new(), bos_token_id: None, ..model.config.clone() };
        expected.fold_norms();
        (row.lost)(&mut expected);
        let found = ModelSpec { eos_token_ids: Vec::new(), bos_token_id: None, ..contents.spec };
        assert_eq!(found, expected, "{}", row.golden);
        let checkpoint = Checkpoint::open_at(location).unwrap_or_else(|error| panic!("{error}"));
        for tensor in model.tensors.iter().filter(|it| it.role != Role::Ignored) {
            let mut expected = numbers(&model, tensor);
            if row.folded && tensor.name.contains("norm") {
                expected.iter_mut().for_each(|it| *it += 1.0);
            }
            let found =
                checkpoint.tensor(&tensor.name).unwrap_or_else(|| panic!("{}", tensor.name));
            assert!(numbers(&checkpoint, found) == expected, "{} {}", row.golden, tensor.name);
        }
    }
}
