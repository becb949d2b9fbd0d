//! Configurations in both spellings, and one test for each that must be refused.

macro_rules! refuses {
    ($($name:ident: $config:expr, $pattern:pat, $words:expr;)*) => {$(
        #[test]
        fn $name() {
            let error = parse(&$config).expect_err("must be refused");
            assert!(matches!(error, $pattern), "{error:?}");
            let text = error.to_string();
            assert!(text.contains($words), "{text}");
        }
    )*};
}

mod dense;
mod experts;
mod families;
mod gates;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gpt_oss;
mod latent;
mod llama4;
mod mixtures;
mod mlx;
mod quantized;
mod recurrent;
mod rotations;
mod slices;
mod wire;

use serde_json::{Value, json};

use super::parse::quoted;
use super::{
    Activation, AttentionSpec, ConfigError, KvDtype, LayerSpec, MlpSpec, ModelSpec, Op, Rope,
    RopeScaling,
};
use crate::encoding::{Affine, Encoding, ModuleFormat};
use crate::testing::{golden_names, golden_path};

/// A plain Llama; tests change one field.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 160, "vocab_size": 384, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "hidden_act": "silu",
    })
}

fn family(architecture: &str, model_type: &str) -> Value {
    with(llama(), json!({"architectures": [architecture], "model_type": model_type}))
}

/// `base` with the fields of `changes`.
fn with(mut base: Value, changes: Value) -> Value {
    for (field, value) in changes.as_object().unwrap() {
        base[field] = value.clone();
    }
    base
}

fn without(mut base: Value, field: &str) -> Value {
    base.as_object_mut().unwrap().remove(field);
    base
}

fn quantized(quantization: Value) -> Value {
    with(llama(), json!({ "quantization": quantization }))
}

fn parse(config: &Value) -> Result<ModelSpec, ConfigError> {
    ModelSpec::parse(config.to_string().as_bytes())
}

fn accepted(changes: Value) -> ModelSpec {
    parse(&with(llama(), changes)).unwrap()
}

fn refused(changes: Value) -> ConfigError {
    parse(&with(llama(), changes)).expect_err("must be refused")
}

fn configuration(name: &str) -> Value {
    let json = std::fs::read(golden_path(name).join("config.json")).unwrap();
    serde_json::from_slice(&quoted(&json)).unwrap()
}

/// What arrives of a specification: all but what only its files need.
fn as_sent(model: ModelSpec) -> ModelSpec {
    let (other_prefixes, other_names, other_modules) = (Vec::new(), Vec::new(), Vec::new());
    ModelSpec { quantization: None, other_prefixes, other_names, other_modules, ..model }
}

fn golden(name: &str) -> ModelSpec {
    ModelSpec::parse(&std::fs::read(golden_path(name).join("config.json")).unwrap()).unwrap()
}

/// Attention of the layer.
fn attention(model: &ModelSpec, layer: usize) -> &AttentionSpec {
    let mut ops = model.layers[layer].ops();
    let found = ops.find_map(|op| if let Op::Attention(it) = op { Some(it) } else { None });
    found.expect("it has attention")
}

/// The network of the first layer.
fn mlp(model: &ModelSpec) -> &MlpSpec {
    let mut ops = model.layers[0].ops();
    let found = ops.find_map(|op| if let Op::Mlp(it) = op { Some(it) } else { None });
    found.expect("it has a network")
}

fn windows_of(model: &ModelSpec) -> Vec<Option<usize>> {
    (0..model.layers.len()).map(|layer| attention(model, layer).window).collect()
}

fn rope(model: &ModelSpec) -> &Rope {
    &model.rotations[0].rope
}

use ConfigError as E;
refuses! {
    refuses_a_list: json!([]), E::NotAnObject { .. }, "a list";
    refuses_no_architecture_at_all:
        without(without(llama(), "architectures"), "model_type"), E::NoArchitecture, "model_type";
    refuses_an_unknown_architecture: family("GemmaForCausalLM", "gemma"),
        E::UnsupportedArchitecture { .. }, "GemmaForCausalLM";
    refuses_an_unknown_model_type: without(family("x", "rwkv6"), "architectures"),
        E::UnsupportedArchitecture { .. }, "rwkv6";
    refuses_a_known_architecture_of_another_type: family("LlamaForCausalLM", "granite"),
        E::ConflictingArchitecture { .. }, "granite";
    refuses_absent_num_hidden_layers: without(llama(), "num_hidden_layers"),
        E::Missing { .. }, "num_hidden_layers";
    refuses_zero_layers: with(llama(), json!({"num_hidden_layers": 0})),
        E::OutOfRange { .. }, "num_hidden_layers";
    refuses_heads_that_do_not_share_kv_heads: with(llama(), json!({"num_key_value_heads": 3})),
        E::HeadsNotDivisible { heads: 4, kv_heads: 3 }, "num_key_value_heads 3";
    refuses_a_hidden_size_that_heads_do_not_divide: with(llama(), json!({"hidden_size": 66})),
        E::HiddenNotDivisible { .. }, "head_dim";
    refuses_an_odd_rotary_dim: with(llama(), json!({"head_dim": 15})),
        E::RotaryDim { rotary_dim: 15, .. }, "even";
    refuses_layer_types_of_another_length: with(llama(), json!({"layer_types": ["full_attention"]})),
        E::LayerTypesLength { expected: 3, found: 1 }, "layer_types";
    refuses_linear_attention: with(llama(), json!({"layer_types":
        ["full_attention", "linear_attention", "full_attention"]})),
        E::UnsupportedLayerType { layer: 1, .. }, "linear_attention";
    refuses_chunked_attention: with(llama(), json!({"layer_types":
        ["chunked_attention", "full_attention", "full_attention"]})),
        E::UnsupportedLayerType { layer: 0, .. }, "chunked_attention";
    refuses_an_unknown_rope_type: with(llama(), json!({"rope_scaling": {"rope_type": "spiral"}})),
        E::UnsupportedRope { .. }, "spiral";
    refuses_dynamic_without_a_factor: with(llama(), json!({"rope_scaling": {"type": "dynamic"}})),
        E::Missing { .. }, "rope_scaling.factor";
    refuses_rotations_of_pictures_where_the_family_sees_none:
        with(llama(), json!({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}})),
        E::UnsupportedRope { .. }, "mrope";
    refuses_yarn_without_factor_and_length: with(llama(), json!({"rope_parameters": {"rope_type": "yarn"}})),
        E::Missing { .. }, "rope_parameters.factor";
    refuses_longrope_without_long_factors: with(family("Phi3ForCausalLM", "phi3"),
        json!({"rope_scaling": {"type": "longrope", "short_factor": vec![1.0; 8]}})),
        E::Missing { .. }, "rope_scaling.long_factor";
    refuses_longrope_with_factors_for_other_pairs: with(family("Phi3ForCausalLM", "phi3"),
        json!({"rope_scaling": {"type": "su", "long_factor": vec![1.0; 8], "short_factor": vec![1.0; 7]}})),
        E::RotationFactors { found: 7, expected: 8, .. }, "rope_scaling.short_factor has 7 numbers";
    refuses_longrope_factors_of_zero: with(family("Phi3ForCausalLM", "phi3"),
        json!({"rope_scaling": {"type": "longrope", "long_factor": vec![0.0; 8], "short_factor": vec![1.0; 8]}})),
        E::WrongType { .. }, "rope_scaling.long_factor";
    refuses_longrope_factors_as_text: with(family("Phi3ForCausalLM", "phi3"),
        json!({"rope_scaling": {"type": "longrope", "long_factor": "1", "short_factor": vec![1.0; 8]}})),
        E::WrongType { .. }, "rope_scaling.long_factor";
    refuses_llama3_without_a_factor: with(llama(), json!({"rope_scaling":
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}})),
        E::Missing { .. }, "rope_scaling.factor";
    refuses_linear_without_a_factor: with(llama(), json!({"rope_scaling": {"type": "linear"}})),
        E::Missing { .. }, "rope_scaling.factor";
    refuses_llama3_frequencies_that_cross: with(llama(), json!({"rope_scaling":
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4.0, "high_freq_factor": 3.5}})),
        E::OutOfRange { .. }, "high_freq_factor";
    refuses_rope_per_layer_type: with(llama(), json!({"rope_parameters":
        {"full_attention": {"rope_type": "default"}}})), E::Unsupported { .. }, "rope_parameters";
    refuses_an_unknown_quant_method: with(llama(), json!({"quantization_config":
        {"quant_method": "mystery", "bits": 7}})), E::UnsupportedQuantization { .. }, "mystery";
    refuses_seven_bits: quantized(json!({"group_size": 64, "bits": 7})),
        E::UnsupportedQuantization { .. }, "quantization.bits 7 is not supported";
    refuses_groups_of_16: quantized(json!({"group_size": 16, "bits": 4})),
        E::UnsupportedQuantization { .. }, "quantization.group_size 16";
    refuses_another_mode: quantized(json!({"group_size": 32, "bits": 4, "mode": "nvfp8"})),
        E::UnsupportedQuantization { .. }, "quantization.mode \"nvfp8\"";
    refuses_quantization_without_a_group: quantized(json!({"bits": 4})),
        E::Missing { .. }, "quantization.group_size is missing";
    refuses_quantization_that_is_no_object: quantized(json!(4)),
        E::WrongType { .. }, "quantization is 4, expected an object";
    refuses_bits_as_text: quantized(json!({"group_size": 64, "bits": "4"})),
        E::WrongType { .. }, "quantization.bits";
    refuses_one_bit_of_one_module: quantized(json!({"group_size": 64, "bits": 4,
        "lm_head": {"group_size": 64, "bits": 1}})),
        E::UnsupportedQuantization { .. }, "quantization[\"lm_head\"].bits 1";
    refuses_a_module_given_as_a_number: quantized(json!({"group_size": 64, "bits": 4,
        "lm_head": 8})), E::WrongType { .. }, "quantization[\"lm_head\"] is 8";
    refuses_another_activation: with(llama(), json!({"hidden_act": "gelu"})),
        E::Unsupported { .. }, "hidden_act \"gelu\"";
    refuses_partial_rotation_where_the_family_has_none:
        with(llama(), json!({"partial_rotary_factor": 0.5})),
        E::Unsupported { .. }, "partial_rotary_factor";
    refuses_soft_caps: with(llama(), json!({"attn_logit_softcapping": 50.0})),
        E::Unsupported { .. }, "attn_logit_softcapping";
    refuses_experts: with(llama(), json!({"num_local_experts": 8})),
        E::Unsupported { .. }, "num_local_experts";
    refuses_biases_the_family_does_not_have:
        with(family("MistralForCausalLM", "mistral"), json!({"attention_bias": true})),
        E::Unsupported { .. }, "attention_bias";
    refuses_sliding_layers_without_a_window: with(family("Qwen2ForCausalLM", "qwen2"),
        json!({"layer_types": ["full_attention", "full_attention", "sliding_attention"]})),
        E::NoWindow { layer: 2, .. }, "use_sliding_window";
    refuses_sliding_layers_of_llama: with(llama(), json!({"layer_types":
        ["full_attention", "full_attention", "sliding_attention"], "sliding_window": 8})),
        E::UnsupportedLayerType { layer: 2, .. }, "sliding_attention";
    refuses_a_size_as_text: with(llama(), json!({"vocab_size": "384"})),
        E::WrongType { .. }, "vocab_size";
    refuses_a_fractional_size: with(llama(), json!({"hidden_size": 64.5})),
        E::WrongType { .. }, "hidden_size";
    refuses_a_negative_size: with(llama(), json!({"intermediate_size": -1})),
        E::OutOfRange { .. }, "intermediate_size";
    refuses_an_absurd_number_of_layers: with(llama(), json!({"num_hidden_layers": 1_000_000_000})),
        E::OutOfRange { .. }, "num_hidden_layers";
    refuses_an_absurd_vocabulary: with(llama(), json!({"vocab_size": u64::MAX})),
        E::OutOfRange { .. }, "vocab_size";
    refuses_a_theta_of_zero: with(llama(), json!({"rope_theta": 0})),
        E::OutOfRange { .. }, "rope_theta";
    refuses_an_end_token_as_text: with(llama(), json!({"eos_token_id": "</s>"})),
        E::WrongType { .. }, "eos_token_id";
    refuses_a_multimodal_wrapper: json!({"architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava", "text_config": {}}),
        E::UnsupportedArchitecture { .. }, "LlavaForConditionalGeneration";
}

#[test]
fn what_python_writes_for_no_number_is_none() {
    for (words, is_fine) in
        [("\"time_step_limit\": [0.0, Infinity]", false), ("\"_name_or_path\": NaN", true)]
    {
        let text = llama().to_string().replacen('{', &format!("{{{words},"), 1);
        assert_eq!(ModelSpec::parse(text.as_bytes()).is_ok(), is_fine, "{words}");
    }
    let eps = without(llama(), "rms_norm_eps").to_string();
    let error = ModelSpec::parse(eps.replacen('{', "{\"rms_norm_eps\": NaN,", 1).as_bytes());
    assert!(matches!(error, Err(ConfigError::WrongType { .. })), "{error:?}");
}

#[test]
fn refuses_what_is_not_json() {
    for text in [&b""[..], b"{", b"<html>", b"\xff\xfe", b"{\"a\": nan}"] {
        assert!(matches!(ModelSpec::parse(text), Err(ConfigError::Json(_))), "{text:?}");
    }
    let nested = "[".repeat(1_000_000);
    assert!(matches!(ModelSpec::parse(nested.as_bytes()), Err(ConfigError::Json(_))));
    let long = vec![b' '; super::MAX_CONFIG_BYTES + 1];
    assert!(matches!(ModelSpec::parse(&long), Err(ConfigError::TooLarge { .. })));
}

#[test]
fn every_required_field_is_named_when_absent() {
    for field in [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ] {
        for config in [without(llama(), field), with(llama(), json!({field: null}))] {
            let error = parse(&config).unwrap_err();
            assert!(matches!(error, ConfigError::Missing { .. }), "{error:?}");
            assert!(error.to_string().contains(field));
        }
    }
}

/// What is in published files beside what the reference itself writes.
#[test]
fn what_other_programs_leave_in_a_configuration_changes_nothing() {
    let plain = accepted(json!({}));
    let left = json!({
        "is_llama_config": true, "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "activation": "swiglu", "max_sequence_length": 2048, "name_or_path": "a/b", "model_name": "b",
        "_flash_attn_2_enabled": true, "_commit_hash": "0a1b", "neftune_noise_alpha": 5.0,
        "rope_interleaved": false, "unsloth_fixed": true, "_name_or_path": "a/b",
        "attn_implementation": "sdpa",
    });
    assert_eq!(accepted(left), plain);
    assert!(refused(json!({"activation": "relu"})).to_string().starts_with("activation"));
}

#[test]
fn both_spellings_mean_the_same() {
    let scaling = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 64});
    let old = accepted(json!({"rope_theta": 500000, "rope_scaling": scaling}));
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(5e5);
    assert_eq!(accepted(json!({"rope_parameters": parameters})), old);
    let mut older = scaling;
    older["type"] = older["rope_type"].take();
    assert_eq!(accepted(json!({"rope_theta": 5e5, "rope_scaling": older})), old);
    for none in [json!(null), json!({"rope_type": "default"}), json!({"type": null})] {
        assert_eq!(rope(&accepted(json!({"rope_scaling": none}))).scaling, RopeScaling::None);
    }
}

#[test]
fn absent_and_null_fields_take_the_reference_defaults() {
    let config = accepted(json!({"num_key_value_heads": null, "head_dim": null}));
    let first = attention(&config, 0);
    assert_eq!((first.kv_heads, first.head_dim), (4, 16));
    assert!(!config.tie_word_embeddings && !first.qkv_bias);
    assert_eq!(rope(&config).theta, 10_000.0);
    assert!(config.eos_token_ids.is_empty() && config.bos_token_id.is_none());
    let by_type = parse(&without(llama(), "architectures")).unwrap();
    assert_eq!(by_type.architecture, "LlamaForCausalLM");
    parse(&without(llama(), "model_type")).unwrap();
}

#[test]
fn a_field_that_is_on_and_that_nobody_understands_is_refused_by_its_name() {
    for (field, on) in [("mystery", json!(1)), ("clip_qkv", json!(8.0)), ("sinks", json!([1]))] {
        let error = refused(json!({ field: on }));
        assert!(matches!(&error, ConfigError::Unsupported { field: it, .. } if it == field));
        assert!(error.to_string().contains("is not supported for LlamaForCausalLM"), "{error}");
        for off in [json!(null), json!(false), json!(0), json!(""), json!([]), json!({})] {
            accepted(json!({ field: off }));
        }
    }
    accepted(json!({"torch_dtype": "bfloat16", "use_cache": true, "pretraining_tp": 1}));
    for (field, neutral) in [("residual_multiplier", 1.0), ("logits_scaling", 1.0)] {
        accepted(json!({ field: neutral }));
        for other in [0.0, 0.5] {
            let error = refused(json!({ field: other }));
            assert!(matches!(&error, ConfigError::Unsupported { field: it, .. } if it == field));
        }
    }
    // Without it, scores are multiplied with another number.
    refused(json!({"attention_multiplier": 1.0}));
    // Another family's field is as unknown as any.
    refused(json!({"num_experts_per_tok": 2}));
}

#[test]
fn tensors_are_those_of_the_branches_each_once() {
    let leaves = |name: &str| {
        let tensors = golden(name).layers[0].tensors();
        let mut leaves: Vec<_> = tensors.iter().map(|it| (it.leaf(), it.shape.clone())).collect();
        leaves.sort();
        leaves
    };
    let tensor = |leaf: &str, shape: &[u64]| (leaf.to_owned(), shape.to_vec());
    assert_eq!(
        leaves("phi3"),
        [
            tensor("input_layernorm.weight", &[64]),
            tensor("mlp.down_proj.weight", &[64, 160]),
            tensor("mlp.gate_up_proj.weight", &[320, 64]),
            tensor("post_attention_layernorm.weight", &[64]),
            tensor("self_attn.o_proj.weight", &[64, 64]),
            tensor("self_attn.qkv_proj.weight", &[128, 64]),
        ]
    );
    let qwen3 = leaves("qwen3");
    assert!(qwen3.contains(&tensor("self_attn.k_norm.weight", &[24])) && qwen3.len() == 11);
    let qwen2 = leaves("qwen2");
    assert!(qwen2.contains(&tensor("self_attn.v_proj.bias", &[32])) && qwen2.len() == 12);
}

#[test]
fn end_tokens_are_one_a_list_or_none() {
    assert_eq!(accepted(json!({"eos_token_id": 2})).eos_token_ids, [2]);
    assert_eq!(accepted(json!({"eos_token_id": [3, 2]})).eos_token_ids, [3, 2]);
    assert!(accepted(json!({"eos_token_id": null})).eos_token_ids.is_empty());
    assert!(accepted(json!({"eos_token_id": -1})).eos_token_ids.is_empty());
    let many = refused(json!({"eos_token_id": vec![1; 65]}));
    assert!(matches!(many, ConfigError::WrongType { .. }));
}

#[test]
fn quantization_is_per_module_and_may_stand_under_either_key() {
    let mlx8 = golden("llama-mlx8").quantization.unwrap();
    let eight = Affine::new(8, 32).map(Encoding::Affine).unwrap();
    assert_eq!(mlx8.of("any"), ModuleFormat::IfPacked(eight));
    assert_eq!(golden("llama").quantization, None);
    let path = |leaf: &str| format!("model.layers.0.{leaf}");
    let both = json!({"group_size": 64, "bits": 4,
        path("mlp.down_proj"): {"group_size": 32, "bits": 8, "mode": "affine"},
        path("mlp.up_proj"): false, "lm_head": true, "model.embed_tokens": null});
    let copied = accepted(json!({"quantization_config": both.clone()}));
    let config = accepted(json!({"quantization": both, "quantization_config": {"bits": 4}}));
    assert_eq!(copied, config);
    let quantization = config.quantization.unwrap();
    let four = Encoding::Affine(Affine::Q4);
    assert_eq!(quantization.of(&path("mlp.down_proj")), ModuleFormat::Packed(eight));
    assert_eq!(quantization.of(&path("mlp.up_proj")), ModuleFormat::Plain);
    assert_eq!(quantization.of("lm_head"), ModuleFormat::Packed(four));
    for module in ["model.embed_tokens", &path("mlp.down_pro"), ""] {
        assert_eq!(quantization.of(module), ModuleFormat::IfPacked(four), "{module}");
    }
}

#[test]
fn key_value_bytes_per_position() {
    let config = golden("llama");
    assert_eq!(config.layers[0].kept().bytes(KvDtype::F32), 2 * 2 * 16 * 4);
    assert_eq!(config.kv_bytes_per_token(KvDtype::F16), 5 * 2 * 2 * 16 * 2);
    // Two heads of 16, each with a scale of its own, of keys and of values.
    assert_eq!(config.kv_bytes_per_token(KvDtype::Q8), 5 * 2 * 2 * (16 + 2));
    for kv in KvDtype::ALL {
        let of_heads = 2 * 2 * kv.head_bytes(16);
        assert_eq!(config.layers[0].kept().bytes(kv), of_heads as u64, "{kv}");
        assert_eq!(kv.to_string().parse(), Ok(kv));
    }
    assert_eq!(KvDtype::Q8.head_bytes(70), 70 + 3 * 2);
    let refused = "bf16".parse::<KvDtype>().unwrap_err().to_string();
    assert_eq!(refused, "\"bf16\" is not a KV cache type; write f32, f16 or q8");
}

proptest::proptest! {
    /// A damaged configuration is refused or read, and never panics.
    #[test]
    fn no_damage_panics(place in 0usize..2000, byte: u8, name in 0..golden_names().len()) {
        let mut json = std::fs::read(golden_path(&golden_names()[name]).join("config.json")).unwrap();
        let place = place % json.len();
        json[place] = byte;
        if let Ok(config) = ModelSpec::parse(&json) {
            let received = ModelSpec::from_wire(&config.to_wire()).unwrap();
            proptest::prop_assert_eq!(received, as_sent(config));
        }
    }
}
