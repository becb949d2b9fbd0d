//! Mixtures and wrappers whose parts other families have: what each makes of its configuration, and what it refuses.

use super::*;

/// Refuses each of these changes of a golden model's configuration by the field's name.
fn refuses_changes(name: &str, changes: &[(&str, Value)]) {
    for (field, value) in changes {
        let config = with(configuration(name), json!({ *field: value }));
        let error = parse(&config).expect_err(field).to_string();
        assert!(error.contains(field), "{name}: {error}");
    }
}

#[test]
fn granite_multiplies_branches_of_experts_too() {
    let model = golden("granite-moe");
    assert_eq!((model.embedding_multiplier, model.logits.multiplier), (1.5, 0.25));
    assert_eq!(attention(&model, 0).scale, 0.2);
    let branches = model.layers.iter().flat_map(|layer| &layer.branches);
    assert!(branches.into_iter().all(|branch| branch.multiplier == 0.6));
    refuses_changes("granite-moe", &[("num_local_experts", json!(0)), ("mlp_bias", json!(true))]);
}

#[test]
fn olmoe_has_norms_over_all_heads_and_bounds_nothing() {
    let model = golden("olmoe");
    let [queries, keys] = attention(&model, 0).qk_norm.clone().expect("norms");
    assert_eq!((queries.width, keys.width), (64, 64));
    refuses_changes("olmoe", &[("clip_qkv", json!(8.0)), ("sliding_window", json!(16))]);
}

#[test]
fn solar_open_has_a_mixture_on_every_layer_and_says_how_wide_its_heads_are() {
    let model = golden("solar-open");
    assert!(model.layers.iter().all(|layer| layer.ops().any(|op| matches!(op, Op::Experts(_)))));
    let changes = [
        ("first_k_dense_replace", json!(1)),
        ("head_dim", json!(null)),
        ("topk_method", json!("greedy")),
        ("use_qk_norm", json!(true)),
    ];
    refuses_changes("solar-open", &changes);
}

#[test]
fn k_exaone_knows_no_positions_where_it_sees_everything() {
    let model = golden("exaone-moe");
    let windows = [Some(7), Some(7), Some(7), None, Some(7), None];
    assert_eq!(windows_of(&model), windows);
    for (layer, window) in windows.iter().enumerate() {
        assert_eq!(attention(&model, layer).rotation.is_some(), window.is_some(), "{layer}");
    }
    let in_letters = without(configuration("exaone-moe"), "layer_types");
    assert_eq!(parse(&in_letters).unwrap(), model);
    let class = json!({"architectures": ["ExaoneMoeForCausalLM"]});
    assert_eq!(parse(&with(configuration("exaone-moe"), class)).unwrap(), model);
    let changes = [
        ("first_last_k_dense_replace", json!(2)),
        ("is_moe_layer", json!([true, true, true, true, true, true])),
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("greedy")),
    ];
    refuses_changes("exaone-moe", &changes);
}

#[test]
fn glm_5_runs_up_to_the_positions_of_which_its_indexer_chooses_all() {
    let config = configuration("glm-moe-dsa");
    assert_eq!(config["max_position_embeddings"], json!(256));
    assert_eq!(golden("glm-moe-dsa").max_position_embeddings, 64);
    let silent = with(without(config, "index_topk"), json!({"max_position_embeddings": 4096}));
    assert_eq!(parse(&silent).unwrap().max_position_embeddings, 2048);
    let said =
        |word: &str| with(silent.clone(), json!({"layer_types": vec![word; 5], "num_experts": 8}));
    for word in ["indexed_attention", "deepseek_sparse_attention"] {
        assert_eq!(parse(&said(word)).unwrap(), parse(&silent).unwrap(), "{word}");
    }
    let changes = [
        ("layer_types", json!(vec!["full_attention"; 5])),
        ("layer_types", json!(["indexed_attention"])),
        ("num_experts", json!(4)),
        ("moe_router_dtype", json!("bfloat16")),
        ("rope_interleave", json!(false)),
    ];
    refuses_changes("glm-moe-dsa", &changes);
}

#[test]
fn qwen3_vl_is_qwen3_beside_what_sees() {
    let config = configuration("qwen3-vl");
    let model = golden("qwen3-vl");
    assert_eq!((attention(&model, 0).head_dim, rope(&model).theta), (24, 5e6));
    assert_eq!(&*model.layer_prefix, "model.language_model.layers.");
    for (field, value) in [("head_dim", json!(null)), ("mlp_bias", json!(true))] {
        let text = with(config["text_config"].clone(), json!({ field: value }));
        let error = parse(&with(config.clone(), json!({ "text_config": text }))).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}
