//! What configurations say of numbers of a byte and of 4 bits, and what of it is refused.

use super::*;
use crate::encoding::{Fp4, Fp8};
use crate::layout::Packing;

/// A Llama whose `quantization_config` has these fields beside its method.
fn of(method: &str, fields: Value) -> Value {
    let object = with(fields, json!({ "quant_method": method }));
    with(llama(), json!({ "quantization_config": object }))
}

/// A group of compressed-tensors whose weights have these fields.
fn group(weights: Value) -> Value {
    let weights = with(
        json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}),
        weights,
    );
    json!({"format": "float-quantized", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": weights,
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": true}}}})
}

fn said(config: &Value) -> String {
    let quantization = parse(config).unwrap().quantization.unwrap();
    match quantization.of("any") {
        ModuleFormat::IfPacked(encoding) => encoding.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn methods_say_what_shares_a_scale() {
    let blocks = json!({"weight_block_size": [128, 128], "fmt": "e4m3", "scale_fmt": "ue8m0",
        "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]});
    assert_eq!(said(&of("fp8", blocks)), "fp8-128x128");
    assert_eq!(
        said(&of("fp8", json!({"weight_block_size": null, "dequantize": false}))),
        "fp8-matrix"
    );
    assert_eq!(said(&of("mxfp4", json!({"modules_to_not_convert": ["lm_head"]}))), "mxfp4");
    for (weights, text) in [
        (json!({}), "fp8-row"),
        (json!({"strategy": "tensor"}), "fp8-matrix"),
        (json!({"strategy": "block", "block_structure": [128, 64]}), "fp8-128x64"),
        (json!({"strategy": "group", "group_size": 128}), "fp8-1x128"),
        (json!({"num_bits": 4, "strategy": "tensor_group", "group_size": 16}), "nvfp4-divided"),
    ] {
        assert_eq!(said(&of("compressed-tensors", group(weights))), text);
    }
    let producer = json!({"name": "modelopt", "version": "0.37.0"});
    for (algorithm, text) in [
        ("NVFP4", "nvfp4-multiplied"),
        ("W4A16_NVFP4", "nvfp4-multiplied"),
        ("MIXED_PRECISION", "nvfp4-multiplied"),
        ("FP8", "fp8-matrix"),
        ("FP8_PER_CHANNEL_PER_TOKEN", "fp8-row"),
        ("fp8_pb_wo", "fp8-128x128"),
        ("MXFP8", "fp8-1x32"),
    ] {
        let fields = json!({"quant_algo": algorithm, "producer": producer, "ignore": ["lm_head"],
            "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "config_groups": {}});
        assert_eq!(said(&of("modelopt", fields)), text);
    }
    for (mode, bits, size, encoding) in [
        ("mxfp4", 4, 32, Encoding::Fp4(Fp4::Mx)),
        ("nvfp4", 4, 16, Encoding::Fp4(Fp4::Nv)),
        ("mxfp8", 8, 32, Fp8::block(1, 32).map(Encoding::Fp8).unwrap()),
    ] {
        let config = quantized(json!({"mode": mode, "bits": bits, "group_size": size,
            "lm_head": {"bits": 8, "group_size": 64}}));
        let quantization = parse(&config).unwrap().quantization.unwrap();
        assert_eq!(quantization.of("any"), ModuleFormat::IfPacked(encoding));
        // A module's own format has a mode of its own.
        let eight = ModuleFormat::Packed(Encoding::Affine(Affine::Q8));
        assert_eq!(quantization.of("lm_head"), eight);
        assert!(matches!(quantization.packing(), Packing::Mlx));
    }
    // Two groups, of which one has no weights.
    let mut two = group(json!({}));
    two["config_groups"]["group_1"] = json!({"targets": ["Linear"], "weights": null});
    assert_eq!(said(&of("compressed-tensors", two)), "fp8-row");
}

refuses! {
    refuses_other_numbers_of_a_byte: of("fp8", json!({"fmt": "e5m2"})),
        E::UnsupportedQuantization { .. }, "quantization_config.fmt \"e5m2\"";
    refuses_blocks_that_nobody_has: of("fp8", json!({"weight_block_size": [100, 100]})),
        E::UnsupportedQuantization { .. }, "quantization_config.weight_block_size [100, 100]";
    refuses_blocks_that_are_no_sizes: of("fp8", json!({"weight_block_size": 128})),
        E::WrongType { .. }, "quantization_config.weight_block_size";
    refuses_what_nobody_knows_of_a_method: of("fp8", json!({"rotated": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.rotated";
    refuses_what_nobody_knows_of_gptq:
        of("gptq", json!({"bits": 4, "group_size": 64, "rotated": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.rotated";
    refuses_what_nobody_knows_of_awq:
        of("awq", json!({"bits": 4, "group_size": 64, "rotated": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.rotated";
    refuses_what_nobody_knows_of_mxfp4: of("mxfp4", json!({"swizzle": "cdna"})),
        E::UnsupportedQuantization { .. }, "quantization_config.swizzle";
    refuses_an_algorithm_of_modelopt: of("modelopt", json!({"quant_algo": "W4A8_AWQ"})),
        E::UnsupportedQuantization { .. }, "quantization_config.quant_algo \"W4A8_AWQ\"";
    refuses_modelopt_without_an_algorithm: of("modelopt", json!({"ignore": []})),
        E::Missing { .. }, "quantization_config.quant_algo";
    refuses_what_nobody_knows_of_modelopt: of("modelopt", json!({"quant_algo": "NVFP4", "rotated": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.rotated";
    refuses_pairs_of_modelopt_in_other_groups: of("modelopt", json!({"quant_algo": "NVFP4", "group_size": 32})),
        E::UnsupportedQuantization { .. }, "quantization_config.group_size 32";
    refuses_a_format_of_compressed_tensors: of("compressed-tensors",
        with(group(json!({})), json!({"format": "marlin-24"}))),
        E::UnsupportedQuantization { .. }, "quantization_config.format \"marlin-24\"";
    refuses_turned_weights: of("compressed-tensors",
        with(group(json!({})), json!({"transform_config": {"config_groups": {"v": 1}}}))),
        E::UnsupportedQuantization { .. }, "quantization_config.transform_config";
    refuses_sparse_weights: of("compressed-tensors",
        with(group(json!({})), json!({"sparsity_config": {"format": "sparse-bitmask"}}))),
        E::UnsupportedQuantization { .. }, "quantization_config.sparsity_config";
    refuses_no_groups: of("compressed-tensors", json!({"format": "float-quantized"})),
        E::Missing { .. }, "quantization_config.config_groups";
    refuses_groups_without_weights: of("compressed-tensors", json!({"config_groups": {}})),
        E::UnsupportedQuantization { .. }, "quantization_config.config_groups";
    refuses_another_type_of_number: of("compressed-tensors", group(json!({"type": "log"}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.type \"log\"";
    refuses_floats_with_zero_points: of("compressed-tensors", group(json!({"symmetric": false}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.symmetric";
    refuses_another_way_to_share_scales: of("compressed-tensors", group(json!({"strategy": "token"}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.strategy \"token\"";
    refuses_blocks_without_a_size: of("compressed-tensors", group(json!({"strategy": "block"}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.block_structure";
    refuses_floats_of_six_bits: of("compressed-tensors", group(json!({"num_bits": 6}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.num_bits 6";
    refuses_pairs_in_other_groups: of("compressed-tensors",
        group(json!({"num_bits": 4, "strategy": "tensor_group", "group_size": 32}))),
        E::UnsupportedQuantization { .. }, "config_groups.group_0.weights.group_size 32";
    refuses_bits_that_a_mode_has_not: quantized(json!({"mode": "mxfp4", "bits": 8, "group_size": 32})),
        E::UnsupportedQuantization { .. }, "quantization.bits 8";
    refuses_a_factor_of_all_scales_in_mlx: quantized(json!({"mode": "nvfp4", "bits": 4, "group_size": 16,
        "lm_head": {"mode": "nvfp4", "bits": 4, "group_size": 16, "global_scale": true}})),
        E::UnsupportedQuantization { .. }, "quantization[\"lm_head\"].global_scale true";
    refuses_a_group_that_a_mode_has_not: quantized(json!({"mode": "nvfp4", "bits": 4, "group_size": 32})),
        E::UnsupportedQuantization { .. }, "quantization.group_size 32";
}

/// A configuration of bitsandbytes with these fields beside those that it must have.
fn bitsandbytes(fields: Value) -> Value {
    of("bitsandbytes", with(json!({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}), fields))
}

#[test]
fn bitsandbytes_says_levels_and_whether_scales_have_scales() {
    // As transformers writes it.
    let all = json!({"_load_in_4bit": true, "_load_in_8bit": false, "load_in_8bit": false,
        "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_use_double_quant": true, "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 6.0});
    assert_eq!(said(&bitsandbytes(all)), "bnb-nf4-64-nested");
    assert_eq!(said(&bitsandbytes(json!({}))), "bnb-nf4-64");
    assert_eq!(said(&of("bitsandbytes", json!({"_load_in_4bit": true}))), "bnb-fp4-64");
}

refuses! {
    refuses_numbers_of_a_byte_of_bitsandbytes: of("bitsandbytes", json!({"load_in_8bit": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.load_in_8bit true";
    refuses_bitsandbytes_of_no_width: of("bitsandbytes", json!({"bnb_4bit_quant_type": "nf4"})),
        E::UnsupportedQuantization { .. }, "quantization_config.load_in_4bit";
    refuses_other_levels: bitsandbytes(json!({"bnb_4bit_quant_type": "af4"})),
        E::UnsupportedQuantization { .. }, "quantization_config.bnb_4bit_quant_type \"af4\"";
    refuses_codes_in_wider_numbers: bitsandbytes(json!({"bnb_4bit_quant_storage": "bfloat16"})),
        E::UnsupportedQuantization { .. }, "quantization_config.bnb_4bit_quant_storage \"bfloat16\"";
    refuses_what_nobody_knows_of_bitsandbytes: bitsandbytes(json!({"rotated": true})),
        E::UnsupportedQuantization { .. }, "quantization_config.rotated";
    refuses_a_flag_of_bitsandbytes_that_is_none: bitsandbytes(json!({"bnb_4bit_use_double_quant": "yes"})),
        E::WrongType { .. }, "quantization_config.bnb_4bit_use_double_quant";
}
