//! Latent attention: its tensors, what is kept of a position, and what families make of their configurations.

use super::*;
use crate::model::{
    Kept, LatentKeys, LatentQueries, LatentSpec, LinearSpec, Names, Role, RotaryPairs,
};

const GOLDEN: [&str; 3] = ["deepseek-v3", "deepseek-v32", "glm4-moe-lite"];

fn latent(model: &ModelSpec, layer: usize) -> &LatentSpec {
    let mut ops = model.layers[layer].ops();
    let found = ops.find_map(|op| if let Op::Latent(it) = op { Some(it) } else { None });
    found.expect("it has latent attention")
}

#[test]
fn a_position_is_kept_as_one_latent_and_one_key_that_rotates() {
    for name in GOLDEN {
        let model = golden(name);
        for layer in &model.layers {
            assert_eq!(layer.kept(), Kept { keys: 24 + 8, groups: 1, ..Kept::default() }, "{name}");
        }
        let layers = model.layers.len() as u64;
        assert_eq!(model.kv_bytes_per_token(KvDtype::F16), layers * 32 * 2, "{name}");
    }
}

#[test]
fn queries_are_made_of_a_short_vector_or_of_the_input() {
    let short = golden("deepseek-v3");
    let found = latent(&short, 0);
    assert_eq!((found.plain_dim, found.rotary_dim, found.value_dim, found.rank), (16, 8, 16, 24));
    let leaves: Vec<String> = short.layers[0].tensors().iter().map(|it| it.leaf()).collect();
    for module in ["q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_layernorm", "kv_b_proj"] {
        assert!(leaves.contains(&format!("self_attn.{module}.weight")), "{module} in {leaves:?}");
    }
    let whole = parse(&with(configuration("deepseek-v3"), json!({"q_lora_rank": null}))).unwrap();
    assert!(matches!(&latent(&whole, 0).queries, LatentQueries::Whole(_)));
    let of_input = latent(&whole, 0).queries();
    assert_eq!((of_input.len(), of_input[0].stored_rows), (1, 4 * (16 + 8)));
}

#[test]
fn keys_and_values_of_a_head_are_rows_of_one_matrix_or_of_two() {
    let mut model = golden("glm4-moe-lite");
    let (LatentKeys::Rows(keys), values) = rows_of(&model, 2) else { panic!("turned") };
    // Of each head first the rows of its keys.
    assert_eq!((keys.rows, values.rows), (72..88, 88..108));
    assert_eq!((keys.stored_rows, values.stored_rows, keys.inputs), (144, 144, 24));
    model.part_latents(|name| name == "model.layers.0.self_attn.embed_q.weight");
    let (LatentKeys::Turned(keys), values) = rows_of(&model, 2) else { panic!("not turned") };
    assert_eq!((&*keys.path, &*values.path), ("self_attn.embed_q", "self_attn.unembed_out"));
    assert_eq!((keys.rows, keys.stored_rows, keys.inputs), (48..72, 96, 16));
    assert_eq!((values.rows, values.stored_rows, values.inputs), (40..60, 80, 24));
    let tensors: Vec<String> = model.tensors_of_heads().collect();
    let of = |ending: &str| {
        ["embed_q", "unembed_out"].map(|it| format!("model.layers.0.self_attn.{it}{ending}"))
    };
    for expected in [of(".weight"), of(".scales"), of(".biases")].concat() {
        assert!(tensors.contains(&expected), "{expected}");
    }
    assert!(tensors.iter().all(|name| name.starts_with("model.layers.0.")), "{tensors:?}");
    assert_eq!(ModelSpec::from_wire(&model.to_wire()).unwrap(), model);
}

fn rows_of(model: &ModelSpec, head: usize) -> (LatentKeys, LinearSpec) {
    let latent = latent(model, 0);
    (latent.keys_of(head), latent.values_of(head))
}

#[test]
fn biases_and_pairs_follow_the_configuration() {
    let of = |changes: Value| parse(&with(configuration("deepseek-v3"), changes)).unwrap();
    let plain = of(json!({}));
    assert!(!latent(&plain, 0).down_bias && !latent(&plain, 0).output_bias);
    assert_eq!(plain.rotations[0].pairs, RotaryPairs::Neighbours);
    assert_eq!(plain.rotations[0].dim, 8);
    let halves = of(json!({"rope_interleave": false, "attention_bias": true}));
    assert_eq!(halves.rotations[0].pairs, RotaryPairs::Halves);
    assert!(latent(&halves, 0).down_bias && latent(&halves, 0).output_bias);
    assert!(matches!(latent(&halves, 0).queries, LatentQueries::Short { bias: true, .. }));
}

/// `yarn_apply_mscale` in the reference: the square of `0.1 · mscale_all_dim · ln(factor) + 1`.
#[test]
fn a_stretched_context_has_larger_scores() {
    let scale = |changes: Value| {
        let base = without(configuration("deepseek-v3"), "rope_parameters");
        latent(&parse(&with(base, changes)).unwrap(), 0).scale * 24f64.sqrt()
    };
    let yarn = |all: f64| {
        json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
            "mscale_all_dim": all, "original_max_position_embeddings": 64,
            "beta_fast": 32, "beta_slow": 1}})
    };
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
    close(scale(json!({})), 1.0);
    close(scale(yarn(1.0)), (0.1 * 40f64.ln() + 1.0).powi(2));
    close(scale(yarn(0.5)), (0.05 * 40f64.ln() + 1.0).powi(2));
    close(scale(yarn(0.0)), 1.0);
}

#[test]
fn an_indexer_that_would_choose_bounds_the_context_and_is_not_loaded() {
    let model = golden("deepseek-v32");
    assert_eq!(model.max_position_embeddings, 64, "index_topk, of 256 positions");
    let all = model.layers[0].tensors();
    assert!(all.iter().all(|tensor| !tensor.path.contains("indexer")));
    let names = Names::of(&model);
    let role = |name: &str| names.role(name);
    for leaf in ["self_attn.indexer.k_norm.bias", "self_attn.indexer.wk.weight_scale_inv"] {
        let found = role(&format!("model.layers.0.{leaf}"));
        assert!(matches!(found, Ok(Role::Ignored)), "{leaf}: {found:?}");
    }
    assert!(role("model.layers.0.self_attn.index.wk.weight").is_err());
    let other = with(configuration("deepseek-v32"), json!({"layer_types": ["full_attention"]}));
    assert!(parse(&other).unwrap_err().to_string().contains("layer_types"));
}

#[test]
fn layers_have_experts_as_a_list_or_a_number_says() {
    let sparse = |config: &Value| -> Vec<bool> {
        let layers = parse(config).unwrap().layers;
        layers.iter().map(|it| it.ops().any(|op| matches!(op, Op::Experts(_)))).collect()
    };
    assert_eq!(sparse(&configuration("deepseek-v3")), [false, true, true, true, true]);
    let listed = configuration("deepseek-v32");
    assert_eq!(sparse(&listed), [false, false, true, true]);
    let mixed = json!({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]});
    assert_eq!(sparse(&with(listed.clone(), mixed)), [true, false, true, false]);
    for types in [json!(["dense"]), json!(["dense", "sparse", "thin", "dense"]), json!("dense")] {
        let config = with(listed.clone(), json!({"mlp_layer_types": types}));
        let error = parse(&config).unwrap_err().to_string();
        assert!(error.contains("mlp_layer_types"), "{error}");
    }
}

#[test]
fn kimi_k2_is_what_its_class_is() {
    let kimi = with(configuration("deepseek-v3"), json!({"model_type": "kimi_k2"}));
    assert_eq!(parse(&kimi).unwrap(), golden("deepseek-v3"));
    let other = with(kimi, json!({"model_type": "llama"}));
    assert!(matches!(parse(&other), Err(ConfigError::ConflictingArchitecture { .. })));
}

#[test]
fn what_is_missing_or_means_something_else_is_refused_by_its_name() {
    let base = || configuration("deepseek-v3");
    for field in ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] {
        let error = parse(&without(base(), field)).unwrap_err().to_string();
        assert_eq!(error, format!("{field} is missing"));
    }
    for (changes, word) in [
        (json!({"num_key_value_heads": 2}), "num_key_value_heads"),
        (json!({"qk_rope_head_dim": 7}), "rotating part"),
        (json!({"kv_lora_rank": 0}), "kv_lora_rank"),
        (json!({"q_lora_rank": -1}), "q_lora_rank"),
        (json!({"n_group": 3}), "n_group"),
        (json!({"use_sliding_window": true}), "use_sliding_window"),
    ] {
        let error = parse(&with(base(), changes)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_no_engine_could_compute_does_not_arrive() {
    let sent = |field: &str, value: Value| {
        let mut json: Value = serde_json::from_slice(&golden("deepseek-v3").to_wire()).unwrap();
        json["model"]["layers"][1]["branches"][0]["op"]["latent"][field] = value;
        let error = ModelSpec::from_wire(json.to_string().as_bytes()).unwrap_err();
        error.to_string()
    };
    for (field, value, words) in [
        ("hidden_size", json!(65), "hidden_size of attention is 65"),
        ("heads", json!(0), "heads is 0"),
        ("heads", json!(1 << 15), "heads is 32768"),
        ("rank", json!(0), "rank is 0"),
        ("rank", json!(23), "norm of latents is 24"),
        ("value_dim", json!(1 << 15), "value_dim is 32768"),
        ("plain_dim", json!(0), "plain_dim is 0"),
        ("rotary_dim", json!(6), "8 numbers of a head rotate"),
        ("rotation", json!(1), "rotation is 1, there are 1"),
        ("scale", json!(0.0), "scale is 0"),
        ("up", json!(""), "module of keys and values"),
        ("keys", json!(""), "module of keys"),
        ("sinks", json!(1), "sinks"),
    ] {
        let error = sent(field, value);
        assert!(error.contains(words), "{field}: {error}");
    }
}
