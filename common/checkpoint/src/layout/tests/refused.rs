//! What is refused, by the names that the file has.

use serde_json::{Value, json};

use super::made::{Made, Way, checkpoint};
use super::{awq, compressed, gptq, with};
use crate::error::Error;
use crate::testing::{Made as Tensor, TinyCheckpoint};

const UP: &str = "model.layers.0.mlp.up_proj";

fn tiny(config: Value, way: Way) -> TinyCheckpoint {
    checkpoint(config, way, &|made: Made| made.packed(4, Some(32)).with_zero(8)).0
}

/// Changes one tensor; the refusal has these words.
#[track_caller]
fn says((config, way): (Value, Way), ending: &str, change: impl Fn(&mut Tensor), words: &[&str]) {
    let mut tiny = tiny(config, way);
    tiny.open().unwrap();
    change(tiny.tensor(&format!("{UP}.{ending}")));
    let Error::Catalog(refusal) = tiny.refusal() else { panic!("{way:?} {ending}") };
    let refusal = refusal.to_string();
    for word in words {
        assert!(refusal.contains(word), "{refusal}: {word}");
    }
}

fn reshape(tensor: &mut Tensor, shape: &[u64]) {
    tensor.2 = shape.to_vec();
    tensor
        .3
        .resize(shape.iter().product::<u64>() as usize * if tensor.1 == "I32" { 4 } else { 2 }, 0);
}

fn ways() -> [(Value, Way); 3] {
    [
        (gptq(4, 32), Way::Gptq { less: 1 }),
        (awq(32), Way::Awq),
        (compressed(4, Some(32), false), Way::Compressed { zeros: true }),
    ]
}

#[test]
fn parts_that_are_missing_have_the_files_names() {
    let endings: [&[&str]; 3] = [
        &["qweight", "qzeros", "scales"],
        &["qweight", "qzeros", "scales"],
        &["weight_packed", "weight_zero_point", "weight_scale"],
    ];
    for ((config, way), endings) in ways().into_iter().zip(endings) {
        for ending in endings {
            let mut tiny = tiny(config.clone(), way);
            let name = format!("{UP}.{ending}");
            tiny.file("model.safetensors").retain(|tensor| tensor.0 != name);
            let refusal = tiny.refusal().to_string();
            assert!(refusal.contains("missing") && refusal.contains(&name), "{refusal}");
        }
    }
    let mut tiny = tiny(with(gptq(4, 32), "desc_act", true), Way::Gptq { less: 1 });
    let name = format!("{UP}.g_idx");
    tiny.file("model.safetensors").retain(|tensor| tensor.0 != name);
    let refusal = tiny.refusal().to_string();
    assert!(refusal.contains("missing") && refusal.contains(&name), "{refusal}");
}

#[test]
fn shapes_and_types_that_are_not_the_layouts() {
    let [gptq, awq, compressed] = ways();
    let up = |ending: &str| format!("{UP}.{ending}");
    let (codes, zeros, scales) = (&*up("qweight"), &*up("qzeros"), &*up("scales"));
    // [columns / 8, rows] is [8, 160]; of words across rows there are 20.
    let with = |shape: &'static [u64]| move |it: &mut Tensor| reshape(it, shape);
    says(gptq.clone(), "qweight", with(&[8, 152]), &[scales, "[2, 160]", "[2, 152]"]);
    says(gptq.clone(), "scales", with(&[4, 160]), &[scales, "[4, 160]", "[2, 160]"]);
    says(gptq.clone(), "qzeros", with(&[2, 19]), &[zeros, "[2, 19]", "[2, 20]"]);
    says(gptq.clone(), "qweight", with(&[8, 160, 1]), &[codes, "matrix of words"]);
    says(gptq.clone(), "qweight", |it| it.1 = "U32", &[codes, "U32", "I32"]);
    says(gptq.clone(), "qzeros", |it| it.1 = "F32", &[zeros, "F32", "I32"]);
    says(gptq, "scales", |it| it.1 = "I16", &[scales, "I16", "F16"]);
    says(awq.clone(), "scales", with(&[2, 152]), &[scales, "[2, 152]", "[2, 160]"]);
    says(awq.clone(), "qzeros", with(&[4, 20]), &[zeros, "[4, 20]", "[2, 20]"]);
    says(awq, "qweight", with(&[60, 20]), &[codes, "60"]);
    let (scales, zeros) = (&*up("weight_scale"), &*up("weight_zero_point"));
    says(compressed.clone(), "weight_scale", with(&[160, 1]), &[scales, "[160, 1]", "[160, 2]"]);
    says(compressed.clone(), "weight_zero_point", with(&[160, 2]), &[zeros, "[20, 2]"]);
    says(compressed, "weight_packed", with(&[160, 16]), &[scales, "[160, 2]", "[160, 4]"]);
}

#[test]
fn matrices_of_another_shape_than_the_models() {
    for (config, way) in ways() {
        let mut tiny = tiny(config, way);
        tiny.config["intermediate_size"] = 192.into();
        let refusal = tiny.refusal().to_string();
        let named = refusal.contains(".qweight") || refusal.contains(".weight_packed");
        assert!(named || refusal.contains(".scales"), "{refusal}");
    }
}

#[test]
fn groups_that_there_are_not() {
    let config = with(gptq(4, 32), "desc_act", true);
    let index =
        |found: i32| move |it: &mut Tensor| it.3[12..16].copy_from_slice(&found.to_le_bytes());
    let way = Way::Gptq { less: 1 };
    says((config.clone(), way), "g_idx", index(2), &["column 3", "group 2", "there are 2"]);
    says((config.clone(), way), "g_idx", index(-2), &["group -2"]);
    says((config.clone(), way), "g_idx", index(i32::MAX), &["2147483647"]);
    says((config, way), "g_idx", |it| reshape(it, &[63]), &["[63]", "[64]"]);
}

#[test]
fn zeros_of_symmetric_numbers() {
    let tiny = tiny(compressed(4, Some(32), true), Way::Compressed { zeros: true });
    let refusal = tiny.refusal().to_string();
    assert!(refusal.contains("weight_zero_point") && refusal.contains("symmetric"), "{refusal}");
}

#[test]
fn configurations_that_say_something_else() {
    let weights = |field: &str, value: Value| {
        let mut config = compressed(4, Some(32), true);
        config["config_groups"]["group_0"]["weights"][field] = value;
        config
    };
    let mut two = compressed(4, Some(32), true);
    two["config_groups"]["group_1"] = compressed(8, None, true)["config_groups"]["group_0"].clone();
    for (config, says) in [
        (gptq(3, 32), "quantization_config.bits 3"),
        (gptq(2, 32), "quantization_config.bits 2"),
        (gptq(4, 48), "quantization_config.group_size 48"),
        (gptq(4, 0), "quantization_config.group_size 0"),
        (gptq(4, -2), "quantization_config.group_size"),
        (with(gptq(4, 32), "checkpoint_format", "marlin"), "checkpoint_format \"marlin\""),
        (with(gptq(4, 32), "pack_dtype", "int16"), "pack_dtype \"int16\""),
        (with(gptq(4, 32), "dynamic", json!({"+:.*up.*": {"bits": 8}})), "dynamic"),
        (with(gptq(4, 32), "sym", "yes"), "quantization_config.sym"),
        (json!({"quant_method": "gptq", "bits": 4}), "group_size is missing"),
        (with(awq(32), "version", "gemv"), "version \"gemv\""),
        (with(awq(32), "version", "gemv_fast"), "version \"gemv_fast\""),
        (with(awq(32), "bits", 8), "quantization_config.bits 8"),
        (with(awq(32), "zero_point", false), "zero_point false"),
        (awq(16), "group_size 16"),
        (with(compressed(4, Some(32), true), "format", "marlin-24"), "format \"marlin-24\""),
        (
            with(
                compressed(4, Some(32), true),
                "transform_config",
                json!({"config_groups": {"u": {}}}),
            ),
            "transform_config",
        ),
        (
            with(
                compressed(4, Some(32), true),
                "sparsity_config",
                json!({"format": "sparse-24-bitmask"}),
            ),
            "sparsity_config",
        ),
        (weights("num_bits", 3.into()), "group_0.weights.num_bits 3"),
        (weights("group_size", 16.into()), "group_0.weights.group_size 16"),
        (weights("strategy", "tensor".into()), "group_0.weights.strategy \"tensor\""),
        (weights("type", "float".into()), "group_0.weights.type \"float\""),
        (two, "config_groups"),
        (
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized"}),
            "config_groups is missing",
        ),
    ] {
        let mut tiny = tiny(gptq(4, 32), Way::Gptq { less: 1 });
        tiny.config["quantization_config"] = config.clone();
        let refusal = tiny.refusal().to_string();
        assert!(refusal.contains(says), "{config}: {refusal}");
    }
    for config in [
        with(gptq(4, 32), "dynamic", json!({"-:.*lm_head.*": {}})),
        with(gptq(4, 32), "pack_dtype", "int32"),
    ] {
        tiny(config, Way::Gptq { less: 1 }).open().unwrap();
    }
}
