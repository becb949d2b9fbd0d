//! Files of models that have a delta rule on most layers: what is read of them, and what must be refused.

use super::made::{BOOL, F32, LIST, Made, TEXT, U32, all_refused_of, list, text};
use super::tests::{golden_gguf, open};
use super::{Kind, files};
use crate::container::Lies;
use crate::encoding::{Encoding, GgmlType};
use crate::model::{DeltaInputs, DeltaSpec, ModelSpec, Op};

const CONVOLUTION: &str = "blk.0.ssm_conv1d.weight";
const RATE: &str = "blk.0.ssm_a";

/// The delta rule of the first layer of a golden file.
fn delta(name: &str) -> DeltaSpec {
    match &open(&golden_gguf(name)).config.layers[0].branches[0].op {
        Op::Delta(delta) => delta.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn delta_rules_have_their_heads_in_the_order_of_the_file() {
    for name in ["qwen35-bf16", "qwen35moe-q8_0"] {
        let delta = delta(name);
        assert!(delta.keys_in_turn && delta.negative_rate, "{name}");
        assert!(matches!(delta.inputs, DeltaInputs::Joined { .. }), "{name}");
        assert!(delta.group() > 1, "{name}");
    }
    let next = delta("qwen3next-bf16");
    assert!(!next.keys_in_turn && next.negative_rate);
    assert!(matches!(next.inputs, DeltaInputs::RatesByHead { .. }));
}

#[test]
fn workers_are_told_how_the_heads_lie() {
    for name in ["qwen35-q4_0", "qwen3next-bf16"] {
        let model = open(&golden_gguf(name)).config;
        assert_eq!(ModelSpec::from_wire(&model.to_wire()).unwrap().layers, model.layers, "{name}");
    }
}

#[test]
fn blocks_stay_where_they_lie() {
    let path = golden_gguf("qwen35-q4_0");
    let (checkpoint, opened) = (open(&path), files::open(&path).unwrap());
    let is_there = |tensor: &&crate::Tensor| tensor.stored.encoding.is_some();
    let blocks: Vec<_> = checkpoint.tensors.iter().filter(is_there).collect();
    assert!(blocks.len() > 40, "{}", blocks.len());
    for tensor in blocks {
        assert_eq!(tensor.stored.encoding, Some(Encoding::Ggml(GgmlType::Q4_0)), "{}", tensor.name);
        assert_eq!(tensor.lies, Lies::Together, "{}", tensor.name);
    }
    let columns = checkpoint.tensor("model.layers.0.linear_attn.out_proj.weight").unwrap();
    let mut tensors = opened[0].head.tensors.iter();
    let there = tensors.find(|tensor| tensor.name == "blk.0.ssm_out.weight").unwrap();
    assert_eq!(there.kind, Kind::Blocks(GgmlType::Q4_0));
    assert_eq!((columns.offset, columns.bytes), (there.start, there.bytes));
}

#[test]
fn dimensions_of_one_may_be_left_out() {
    let shape = |name: &str, tensor: &str| {
        open(&golden_gguf(name)).tensor(&format!("model.layers.0.{tensor}")).unwrap().shape.clone()
    };
    assert_eq!(shape("qwen35-bf16", "linear_attn.conv1d.weight"), [112, 1, 4]);
    let gate = "mlp.shared_expert_gate.weight";
    assert_eq!(shape("qwen35moe-bf16", gate), [1, 48]);
    let mut made = Made::of("qwen35moe-bf16");
    made.info("blk.0.ffn_gate_inp_shexp.weight").dims = vec![48];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made.gguf");
    std::fs::write(&path, made.bytes()).unwrap();
    let found = open(&path).tensor(&format!("model.layers.0.{gate}")).unwrap().shape.clone();
    assert_eq!(found, [1, 48]);
}

#[test]
fn wrong_delta_rules_are_refused() {
    const LAYERS: &str = "qwen35.attention.recurrent_layers";
    fn layers(it: &mut Made, flags: &[u8]) {
        let flags: Vec<Vec<u8>> = flags.iter().map(|flag| vec![*flag]).collect();
        it.put(LAYERS, LIST, list(BOOL, &flags));
    }
    all_refused_of(
        &Made::of("qwen35-bf16"),
        &[
            (
                "no width of keys",
                |it| it.drop("qwen35.ssm.state_size"),
                "metadata lack \"qwen35.ssm.state_size\"",
            ),
            (
                "no width of values",
                |it| it.drop("qwen35.ssm.inner_size"),
                "metadata lack \"qwen35.ssm.inner_size\"",
            ),
            (
                "no heads of keys",
                |it| it.put("qwen35.ssm.group_count", U32, [0; 4]),
                "\"qwen35.ssm.group_count\" in the metadata is 0, expected more than 0",
            ),
            (
                "three heads of keys",
                |it| it.put("qwen35.ssm.group_count", U32, [3, 0, 0, 0]),
                "linear_num_value_heads",
            ),
            (
                "twice as many heads of keys",
                |it| it.put("qwen35.ssm.group_count", U32, [4, 0, 0, 0]),
                "has shape",
            ),
            (
                "no heads of values",
                |it| it.put("qwen35.ssm.time_step_rank", U32, [0; 4]),
                "\"qwen35.ssm.time_step_rank\" in the metadata is 0, expected more than 0",
            ),
            (
                "63 numbers of four heads",
                |it| it.put("qwen35.ssm.inner_size", U32, [63, 0, 0, 0]),
                "in the metadata is 63, expected as many numbers for each of 4 heads",
            ),
            (
                "three taps",
                |it| it.put("qwen35.ssm.conv_kernel", U32, [3, 0, 0, 0]),
                "linear_attn.conv1d.weight",
            ),
            (
                "2^32 taps",
                |it| it.put("qwen35.ssm.conv_kernel", U32, [255; 4]),
                "linear_conv_kernel_dim",
            ),
            (
                "attention on each of no layers",
                |it| it.put("qwen35.full_attention_interval", U32, [0; 4]),
                "\"qwen35.full_attention_interval\" in the metadata is 0, expected more than 0",
            ),
            (
                "attention on other layers",
                |it| {
                    it.drop(LAYERS);
                    it.put("qwen35.full_attention_interval", U32, [2, 0, 0, 0]);
                },
                "model.layers.1",
            ),
            ("attention on all layers", |it| layers(it, &[0; 8]), "model.layers.0"),
            ("layers that are too few", |it| layers(it, &[1; 7]), "one for each of 8 layers"),
            (
                "one truth for all layers",
                |it| it.put(LAYERS, BOOL, [1]),
                "in the metadata is true, expected a list with one for each layer",
            ),
            (
                "layers in words",
                |it| it.put(LAYERS, LIST, list(TEXT, &[text(b"all")])),
                "\"qwen35.attention.recurrent_layers\" in the metadata must be true or false",
            ),
            (
                "parts of a position in words",
                |it| it.put("qwen35.rope.dimension_sections", TEXT, text(b"all")),
                "\"qwen35.rope.dimension_sections\" in the metadata must be a list of whole numbers",
            ),
            (
                "no layer that does not predict",
                |it| it.put("qwen35.nextn_predict_layers", U32, [8, 0, 0, 0]),
                "\"qwen35.nextn_predict_layers\" in the metadata is 8, expected fewer",
            ),
            (
                "experts",
                |it| it.put("qwen35.expert_count", U32, [4, 0, 0, 0]),
                "architecture \"qwen35 with experts\" is not run",
            ),
            (
                "a turned convolution",
                |it| it.info(CONVOLUTION).dims.reverse(),
                "linear_attn.conv1d.weight",
            ),
            (
                "a convolution of four dimensions",
                |it| it.info(CONVOLUTION).dims.extend([1, 1]),
                "linear_attn.conv1d.weight",
            ),
            (
                "rates by another name",
                |it| it.info(RATE).name = b"blk.0.ssm_a.weight".into(),
                "linear_attn.A",
            ),
            ("rates of a matrix", |it| it.info(RATE).dims = vec![2, 2], "linear_attn.A"),
            (
                "rates of a layer that attends",
                |it| it.info(RATE).name = b"blk.3.ssm_a".into(),
                "model.layers.3.linear_attn.A",
            ),
            (
                "rates as Qwen3-Next has them",
                |it| it.info("blk.0.ssm_beta.weight").name = b"blk.0.ssm_ba.weight".into(),
                "in_proj_ba",
            ),
        ],
    );
}

#[test]
fn wrong_mixtures_beside_delta_rules_are_refused() {
    all_refused_of(
        &Made::of("qwen3next-bf16"),
        &[
            (
                "no experts",
                |it| it.drop("qwen3next.expert_count"),
                "architecture \"qwen3next\" is not run",
            ),
            (
                "no width",
                |it| it.drop("qwen3next.expert_feed_forward_length"),
                "metadata lack \"qwen3next.expert_feed_forward_length\"",
            ),
            (
                "another width beside them",
                |it| it.put("qwen3next.expert_shared_feed_forward_length", U32, [8, 0, 0, 0]),
                "mlp.shared_expert.",
            ),
            (
                "weights that are multiplied",
                |it| it.put("qwen3next.expert_weights_scale", F32, 2.5f32.to_le_bytes()),
                "\"qwen3next.expert_weights_scale\" in the metadata is 2.5; nothing is known",
            ),
            (
                "a gate for two",
                |it| it.info("blk.0.ffn_gate_inp_shexp.weight").dims = vec![24, 2],
                "mlp.shared_expert_gate.weight",
            ),
        ],
    );
}
